// Package state stores the replicated state of an exporter in a compacted Kafka topic of one partition. The owner writes
// under a transactional ID, which fences older owners; followers read without any claim.
package state
