// Package connection is one connection to a Kafka broker. It sends requests in order, several at a time without waiting for
// answers. Batches of many partitions share a request.
package connection
