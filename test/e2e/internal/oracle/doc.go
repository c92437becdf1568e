// Package oracle knows what is true: it reads the history of the selected resources from etcd itself, below the API
// server, and lists the differences of the stream on a bus.
//
// The history is a plain value ([History]) and judging is a pure function of it and of the records read, so that both are
// tested without servers. Two questions are asked of it: what is still missing ([History.Missing]), while a test waits,
// and what is wrong ([History.Judge]), at the end. The second one includes the first.
//
// What is judged, per bus: every revision is there with its resourceVersion, or a gap record of its resource covers it;
// nothing is there that never was; the type matches the operation; each object's records ascend, after repetitions under the
// same ID are taken out; the last record of each object is its last state; an ID agrees with its change.
package oracle
