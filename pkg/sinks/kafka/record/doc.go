// Package record encodes changes as Kafka record batches (version 2, KIP-98): key, value and headers of each record, and the
// producer ID and sequence numbers by which a broker drops copies.
package record
