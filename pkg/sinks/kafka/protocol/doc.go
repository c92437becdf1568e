// Package protocol has the parts of Kafka's protocol that kafka-go lacks: requests without kafka-go types, the batches of a
// fetch response, and the meaning of error codes for a batch that was sent.
package protocol
