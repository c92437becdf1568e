// Package record writes changes as Kafka's record batches (version 2, KIP-98): key, value and headers of each record, and
// the numbers by which a broker drops copies.
package record
