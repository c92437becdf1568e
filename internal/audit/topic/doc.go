// Package topic reads audit events from Kafka topics, as managed clouds and log shippers provide them: the value of each
// record is an event, or an EventList, of audit.k8s.io/v1.
//
// The position of a partition is stored in the same commit as its events, so there is no consumer group, and nothing is
// committed to Kafka. The batch that was read last identifies a partition: that works with brokers of every version, which
// topic IDs do not.
package topic
