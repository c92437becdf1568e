// Package protocol knows of Kafka's protocol what kafka-go does not: requests that it has no types for, and what each error
// code means for a batch that was sent.
package protocol
