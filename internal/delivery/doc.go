// Package delivery moves changes from the journal to one sink, lane by lane, with bounded memory. One [Pipeline] serves one
// sink and shares nothing with the others, so that a sink that is unavailable delays no other. DESIGN.md describes the
// parts.
//
// # How a change passes
//
//	journal.Read ─▶ dispatcher ─▶ sink.Lane ─▶ window (bytes) ─▶ queue of the lane ─▶ workqueue (items = lanes)
//	                                                                                      │
//	journal.Settle ◀─ every SettleInterval ◀─ lane advances ◀─ n accepted ◀─ sink.Publish ◀─ worker ◀─ bucket, gate
//
// The dispatcher reads the journal in order and queues each change with its lane. The workqueue of client-go never hands out
// an item that a worker holds, so that at most one Publish per lane runs and the changes of a lane are published in journal
// order (I3). A full window blocks the dispatcher (I6), unless slow lanes hold it that the others need not wait for.
//
// # Failures
//
//	*sinks.RejectedError     the change becomes a dead letter and its lane continues. A change that is too large is truncated
//	                         and tried again first. If Config.PublishDeadLetter is set, the lane waits until that succeeded
//	*sinks.UnavailableError  the gate closes: every lane waits, and one probe at a time checks the destination. If Publish
//	                         calls of other lanes were accepted since this lane got its first such answer, it fails alone
//	*sinks.LostError         Run returns it; the caller starts another pipeline from an earlier position
//	*sinks.DeposedError      Run returns it; another process delivers
//	Change.Withheld          the change becomes a dead letter; the sink never gets it
//	anything else            the lane retries with growing back-off and never gives up; other lanes continue
//
// If a sink has several destinations and a Publish takes long, a substitute worker serves the other lanes meanwhile. A
// [sinks.ProbedError] is retried at the interval that it gives.
//
// A lane that fails lags: its queue is dropped, its changes stay in the journal, and they are read again when it may publish
// (reread.go). No lane blocks the dispatcher. Rejections of a destination that has accepted nothing lately count as an
// outage, of the sink or of one destination (rejections.go). The condition of the sink follows from all its lanes
// (health.go).
//
// An answer that violates the contract of [sinks.Sink] (a count out of range, a count and an error that contradict each
// other) counts as a failure and is logged: the batch is sent again. A panic in a sink is not recovered, because the state
// of its lane is unknown afterwards; the process restarts from the journal.
//
// # Guarantees
//
// The stored cursor never passes a change that was neither acknowledged nor dead-lettered in the same write (I2). Within one
// process, the acknowledged changes of a lane, and so of an object, strictly ascend: none is skipped, and none is sent again
// after its acknowledgement. After a restart a lane continues after its stored position: changes acknowledged after the last
// write of the cursor, usually those of one SettleInterval, are sent again with the same IDs in the same order. If the
// layout of lanes has changed, lane positions are void and that repetition starts at Cursor.Low. A consumer that drops IDs
// it has already seen gets every change once, in order (I3).
//
// # Limits
//
// The package never gives up on a change, never reorders a lane, stores no position outside of the journal, and never
// looks into a change.
package delivery
