// Package deltas decides what changed. A [Tracker] sits between the watch of a scope and the journal. It receives the events
// of the API server in batches, groups them by object in a DeltaFIFO, and passes the known state of each object and its
// newest deltas to [Step], a pure function that returns typed changes.
//
//	batch of events, or of a list ──▶ DeltaFIFO ── Pop until empty: all deltas of one object ──▶ Step(known, deltas)
//	                                                                                              │ changes, new known
//	                                                                                              ▼
//	                                        one Observation: changes + known + position of the batch's last event
//
// DeltaFIFO reorders across objects, but never across batches: when a batch is drained, everything up to its last event has
// been emitted, and that event's resourceVersion is the position (I1). The position is therefore never behind the known
// objects, and a watch resumed from it repeats nothing.
//
// The known objects are DeltaFIFO's KnownObjects. Those that a list lacks were deleted while no watch was open (I8), or are
// no longer selected. Known objects outlive the rule that selected them: after an edit of the rules, the new selection is
// compared with them.
//
// The package does no network or disk I/O and no logging, and uses only the clock it is given.
package deltas
