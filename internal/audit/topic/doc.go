// Package topic reads audit events from Kafka topics, as managed clouds and log shippers give them: each record's value is
// an event, or an EventList, of audit.k8s.io/v1. It is a plain client of kafka-go's: what has been read is stored with the
// events by whoever takes them, so there is no consumer group and nothing is committed to Kafka.
package topic
