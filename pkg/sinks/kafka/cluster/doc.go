// Package cluster asks the brokers of a Kafka cluster: each over connections of its own, about many partitions at once. It
// knows nothing of changes.
//
//	cluster.go      connections, and who is asked over which
//	rounds.go       many questions are one
//	metadata.go     who leads the partitions of topics; topics are configured and made
//	reader.go       partitions are read back
//	producers.go    producer IDs, and what brokers know of them
//	transaction.go  transactional IDs, which are used as fences only
//	throttle.go     quotas
//	explain.go      what an error means, for people and for the contract of sinks
package cluster
