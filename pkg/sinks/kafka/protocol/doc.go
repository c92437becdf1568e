// Package protocol knows of Kafka's protocol what kafka-go does not: a way to send requests that it has no types for, the
// batches of a fetch, and what each error code means for a batch that was sent.
package protocol
