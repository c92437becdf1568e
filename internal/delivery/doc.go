// Package delivery moves changes from the journal to one sink, lane by lane, with bounded memory. One [Pipeline] serves
// one sink; pipelines know nothing of each other, so a sink that is away delays nobody else.
//
// # How a change passes
//
//	journal.Read ─▶ dispatcher ─▶ sink.Lane ─▶ window (bytes) ─▶ queue of the lane ─▶ workqueue (items = lanes)
//	                                                                                      │
//	journal.Settle ◀─ every SettleInterval ◀─ lane advances ◀─ n accepted ◀─ sink.Publish ◀─ worker ◀─ bucket, gate
//
// The dispatcher reads frames in journal order and queues each change with its lane. The workqueue of client-go never
// hands out an item that is in work, so at most one Publish per lane runs, and a lane's changes go out in journal order:
// that is the whole mechanism behind I3. A full window stops the dispatcher (I6), unless lanes hold it that others need
// not wait for.
//
// # What failing means
//
//	*sinks.RejectedError     the change becomes a dead letter, its lane goes on; if it is too large, smaller forms of it
//	                         are tried first, in its place. Config.PublishDeadLetter, where set, publishes it elsewhere before it
//	                         is stored; until that is done the lane waits
//	*sinks.UnavailableError  the gate closes: every lane waits while one probe at a time finds out; where others were
//	                         accepted since the lane was told so first, it fails alone
//	Change.Withheld          the change becomes a dead letter, the sink never sees it
//	anything else            the lane waits and tries again, longer each time, for ever; other lanes go on
//
// A Publish that takes long gives its worker's place to another, where lanes lead to several destinations: those that hang
// keep none from the others. An error that the sink looks after itself ([sinks.ProbedError]) is tried as often as it says.
//
// A lane that fails falls behind: its queue is dropped, its changes stay in the journal, and when it works again they are
// read from there (behind.go, catchup.go). No lane stops the dispatcher. Rejections without any acceptance are no answers
// but an outage, of the sink or of the lane (breaker.go). How the sink is doing is decided in one place, from all lanes
// (health.go).
//
// A sink that breaks its contract (a count out of range, a count and an error that contradict each other) is treated as
// failing, and the breach is logged: the batch is sent again rather than counted as delivered. A panic in a sink is not
// caught, because nothing is known about its lane afterwards; the process restarts from the journal.
//
// # What holds
//
// The stored cursor never passes a change that was not acknowledged, or dead-lettered in the same write (I2). While one
// process lives, the acknowledged changes of a lane, and so of an object, are strictly ascending: none is skipped and
// none is sent again once acknowledged. After a restart a lane continues behind its stored position, so changes that
// were acknowledged after the last write of the cursor, usually one SettleInterval, are sent once more: the same changes,
// with the same IDs, in the same order. When the layout of lanes changed, positions mean nothing and that repetition
// starts at Cursor.Low. Either way, whoever drops the IDs it has seen gets every change once, in order (I3).
//
// # What it never does
//
// It never gives up on a change by itself, never reorders a lane, never keeps a position of its own (the journal does),
// and never asks what is in a change.
package delivery
