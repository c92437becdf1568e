// Package shape decides how much of a change is emitted, and where it goes: it takes secrets out before anything is stored.
//
// # How a change passes
//
//	deltas.Tracker ─▶ shape (one [event.Append] in front of another, for each scope) ─▶ journal
//
// What is journaled is what consumers get, so whatever must not be seen is gone before it can reach a disk, a log or a dead
// letter. What does not become a change still moves on: the observation keeps its known objects and its position (I1).
//
// A [Router] is asked on the other side of the journal, by each sink as it reads: what it keeps from one sink another may
// get.
//
// # Bytes, not maps
//
// Redaction is one pass over the bytes of an object, which are changed only where a secret stands: numbers keep their
// spelling and members their order. An object with nothing to change is passed on as it is, without a copy, and a rule
// that asks for nothing never looks into its objects.
//
// # Fail closed
//
// An object that cannot be understood is not shown: its change loses both bodies and says so in event.Change.Withheld, and
// every sink makes a dead letter of it. Errors name byte offsets and never quote what stands there.
//
// # What it never does
//
// It never fails, never waits, never logs, has no clock and keeps no state of an object.
package shape
