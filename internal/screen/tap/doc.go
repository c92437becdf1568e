// Package tap shows changes to a person as they happen: in a terminal, without a bus, a configuration file or anything on
// disk.
//
// [Cluster] reads them straight from a cluster, through the same source and the same redaction as the exporter, and keeps
// the last state of objects in memory to show field by field what changed. It writes through a [Printer].
//
// Memory is bounded: [maxStates] for the states of objects, a few hundred bytes for each object that is watched, and a queue
// of [queued] changes. A terminal that does not take more holds up the reading, and nothing else.
package tap
