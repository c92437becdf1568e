// Package topic takes signals from a Kafka topic: each record is one request in JSON. The position of a partition is stored
// together with the signal before it, so that each record is taken once, also after a crash or by another exporter.
package topic
