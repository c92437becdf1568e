// Package condition keeps how something outside of this program is doing: a broker, a watched resource, a disk. A
// [Condition] has one [Status] at a time: a state, the reason for it, what to do about it and since when it lasts.
//
// The owner of a condition reports what it sees with [Condition.Update], as often as it likes. The log gets one line per
// change of state or reason, never one per retry, and a line with the duration when the trouble is over. Readiness, metrics
// and the status page read [Condition.Status], which never waits for anybody.
//
// A [Set] holds conditions of the same kind, such as one for each watched resource, and writes one line for all members that
// meet the same fault at the same time. [Summarize] does the same for what people read.
package condition
