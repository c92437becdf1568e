// Package protocol has the parts of Kafka's protocol that kmsg lacks: how requests and responses are framed, the batches
// of a fetch response, and the meaning of error codes for a batch that was sent.
package protocol
