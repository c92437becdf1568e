// Package consumer rebuilds the state of a cluster from the stream alone. It is the reference for docs/consuming.md: an
// example to read and to take, and what the tests of this project hold the stream to.
//
// A [Table] takes records of the native form one by one. It needs them in order per object, which is how they lie in one
// Kafka partition, in one JetStream stream, in one file; objects may come in any order among each other, and so may the
// partitions. Records that come twice change nothing.
//
// The package imports nothing of the exporter, on purpose: what it knows of the stream is what docs/events.md says. It is
// not safe for concurrent use and does no I/O.
package consumer
