// Package cluster sends requests to the brokers of a Kafka cluster: to each over its own connections, and about many
// partitions in one request. It knows nothing of changes.
//
//	cluster.go      requests to one broker or any
//	pool.go         connections, by broker and purpose
//	coalescer.go    concurrent questions share a request
//	metadata.go     leaders of partitions; settings and creation of topics
//	reader.go       offsets and records of partitions
//	producers.go    producer IDs, and the numbers that brokers have of them
//	transaction.go  transactional IDs, used as fences only
//	throttle.go     quotas
//	errors.go       errors with remedies, in the types of the sinks contract
package cluster
