// Package deltas decides what changed. A [Tracker] stands between the watch of a scope and the journal: it is given what
// the API server said, in batches, groups that by object in a DeltaFIFO, and lets [Step], a pure function, turn what is
// known of an object and its newest deltas into typed changes.
//
//	batch of events, or of a list ──▶ DeltaFIFO ── Pop until empty: all deltas of one object ──▶ Step(known, deltas)
//	                                                                                              │ changes, new known
//	                                                                                              ▼
//	                                        one Observation: changes + known + position of the batch's last event
//
// DeltaFIFO reorders across objects, but never across batches: when a batch is drained, everything up to its last event has
// been emitted, and that event's resourceVersion is the position (I1). So the position is never behind what is known, and a
// watch that goes on from it repeats nothing.
//
// The set of known objects is DeltaFIFO's KnownObjects: what a list lacks of them was deleted while nobody watched (I8),
// or is not selected any more. Known objects outlive the rule that they were selected by: after an edit they are what the
// new selection is compared with.
//
// This package has no network, disk or logging, and no clock but the one it is given.
package deltas
