// Package deltas decides what changed. A [Queue] stands between client-go's Reflector and the journal: the Reflector
// feeds it what the API server said, a DeltaFIFO groups that by object, and [Step], a pure function, turns what is known
// of an object and its newest deltas into typed changes.
//
//	Reflector ── Add/Update/Delete/Replace/Bookmark ──▶ Queue: number, then DeltaFIFO
//	                                                      │ Pop: all deltas of one object
//	                                                      ▼
//	                                                    Step(known, deltas) ──▶ changes, new known
//	                                                      │
//	                                                      ▼
//	                                                    Append(Observation): changes + known + position, one atom
//
// DeltaFIFO reorders across objects, so a position cannot be read off what was popped last. Every delta gets a number on
// entry, where the order is still the API server's; the position is the resourceVersion of the low watermark: the
// highest number below which everything was appended (I1).
//
// The set of known objects is DeltaFIFO's KnownObjects: a list that lacks a known object is how deletes that nobody
// watched are found (I8). It is seeded from the journal at start and updated with each Pop, never later.
//
// This package has no network, disk or logging, and no clock but the one it is given.
package deltas
