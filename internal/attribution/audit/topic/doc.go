// Package topic reads audit events from Kafka topics, as managed clouds and log shippers provide them: the value of each
// record is an event, or an EventList, of audit.k8s.io/v1.
//
// The position of a partition is stored in the same commit as its events, see package follow.
package topic
