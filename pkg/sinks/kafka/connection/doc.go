// Package connection is one connection to a Kafka broker. It uses the requests of kafka-go's protocol package, and sends
// them in order, several at a time without waiting for answers. Batches of many partitions share a request.
package connection
