// Package connection is one connection to a Kafka broker, over the requests of kafka-go's protocol: requests leave in order,
// several at a time, without waiting for answers, and batches of many partitions go in one request.
package connection
