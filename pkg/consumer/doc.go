// Package consumer rebuilds the state of a cluster from the stream alone. It implements the rules of docs/consuming.md, and
// can be used as a library or as a reference for other languages.
//
// A [Table] applies records of the native form one by one, as [Parse] returns them: the values of the formats json and
// cloudevents, and the data of cloudevents-structured. The records of one object must be in order, as in a Kafka partition,
// a JetStream stream or a file; different objects and partitions may be read in any order. Repeated records change nothing.
//
// The package deliberately imports nothing from the exporter but the order of versions: its knowledge of the stream is
// limited to docs/events.md. It is not safe for concurrent use and does no I/O. Bodies are stored unchanged.
package consumer
