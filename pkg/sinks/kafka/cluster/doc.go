// Package cluster sends requests to the brokers of a Kafka cluster: to each over its own connections, and about many
// partitions in one request. It knows nothing of changes.
//
//	cluster.go      requests to one broker or any; connections, by broker and purpose
//	metadata.go     leaders of partitions; settings and creation of topics
//	reader.go       offsets and records of partitions
//	transaction.go  transactional IDs, used as fences only; producer IDs; errors with remedies, in the types of the contract
//	throttle.go     quotas; concurrent questions share a request
package cluster
