// Package delivery moves changes from the journal to one sink, lane by lane, with bounded memory. One [Pipeline] serves one
// sink and shares nothing with the others, so that a sink that is unavailable delays no other. DESIGN.md describes the
// parts.
//
// # How a change passes
//
//	journal.Read ─▶ dispatcher ─▶ sink.Lane ─▶ window (bytes) ─▶ queue of the lane ─▶ workqueue (items = lanes)
//	                                                                                      │
//	journal.Settle ◀─ every SettleInterval ◀─ lane advances ◀─ n accepted ◀─ sink.Publish ◀─ worker ◀─ gate
//
// The dispatcher reads the journal in order and queues each change with its lane. The workqueue of client-go never hands out
// an item that a worker holds, so that at most one Publish per lane runs and the changes of a lane are published in journal
// order (I3). A full window blocks the dispatcher (I6), unless slow lanes hold it that the others need not wait for.
//
// # Failures
//
//	*sinks.RejectedError     the change becomes a dead letter and its lane continues; one that is too large is truncated first
//	*sinks.UnavailableError  the gate closes: every lane waits, and one probe at a time checks the destination. If Publish
//	                         calls of other lanes were accepted since this lane got its first such answer, it fails alone
//	*sinks.LostError         Run returns it; the caller starts another pipeline from an earlier position
//	*sinks.DeposedError      Run returns it; another process delivers
//	Change.Withheld          the change becomes a dead letter; the sink never gets it
//	anything else            the lane retries with growing back-off and never gives up; other lanes continue
//
// # Limits
//
// The package never gives up on a change, never reorders a lane, stores no position outside of the journal, and never
// looks into a change.
package delivery
