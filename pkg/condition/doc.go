// Package condition tracks what is wrong: with a broker, a watched resource, a disk. A [Condition] has one [Status] at a
// time. A status that is not OK has a [Code] of a closed set, the newest cause, the effect, a remedy, and its beginning;
// where history gets lost, also the time when that begins. [Kinds] has what is known of each code.
//
// The owner of a condition calls [Condition.Update] with every observation. The log gets one line per change of code or
// cause, none per retry, and a line with the duration when the failure ends. Readiness, metrics and the status page read
// [Condition.Status], which never blocks, and write [Status.Text]. An intermittent failure ends when it was not observed for
// a while: its owner looks at that when it is asked for the status.
//
// A [Set] holds conditions of the parts of one component, such as the watched resources, and logs one line for all members
// that fail for the same cause at the same time. [Summarize] does the same for every other output: one fault is one status.
package condition

//go:generate go test -run TestConditionsPageIsUpToDate . -update
