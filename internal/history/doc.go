// Package history answers questions about the past of a cluster from the folder that the sink of that name writes: what
// changed, what existed at a moment, what differs between two moments, and since when each field has its value.
//
// No state is shown that the history does not know. Before the first whole list of a resource, and in a gap, states are
// unknown: [Unknown] has these intervals, and an answer that they concern has the exit code for that. Begin with history.go.
package history
