// Package consumer rebuilds the state of a cluster from the stream alone. It does what docs/consuming.md says, rule by rule,
// and is there to be used, or to be read and written anew in another language.
//
// A [Table] takes records of the native form one by one, as [Parse] reads them: the values of the formats json and
// cloudevents, and the data of cloudevents-structured. It needs them in order per object, which is how they lie in one
// Kafka partition, in one JetStream stream, in one file; objects may come in any order among each other, and so may the
// partitions. Records that come twice change nothing.
//
// The package imports nothing of the exporter, on purpose: what it knows of the stream is what docs/events.md says. It is
// not safe for concurrent use and does no I/O. Bodies are kept as they came.
package consumer
