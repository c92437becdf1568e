// Package topic reads audit events from Kafka topics, as managed clouds and log shippers give them: each record's value is
// an event, or an EventList, of audit.k8s.io/v1. What has been read is stored with the events by whoever takes them, so
// there is no consumer group and nothing is committed to Kafka. A partition is known again by the batch that was read last:
// that works with brokers of every version, where topic IDs do not.
//
//	topic.go      which partitions there are
//	partition.go  one is read
package topic
