// Package condition tracks the condition of something outside of this program: a broker, a watched resource, a disk. A
// [Condition] has one [Status] at a time: a state, its reason, a remedy, and when the state began.
//
// The owner of a condition calls [Condition.Update] with every observation. The log gets one line per change of state or
// reason, none per retry, and a line with the duration when the failure ends. Readiness, metrics and the status page read
// [Condition.Status], which never blocks.
//
// A [Set] holds conditions of the same kind, such as one per watched resource, and logs one line for all members that fail
// for the same reason at the same time. [Summarize] does the same for the status page.
package condition
