// Package shape decides how much of a change is emitted and where it goes, and redacts secrets before anything is stored.
//
// # How a change passes
//
//	deltas.Tracker ─▶ shape (one [event.AppendFunc] in front of another, for each scope) ─▶ journal
//
// Consumers receive what is journaled, so secrets are removed before they can reach a disk, a log or a dead letter. Changes
// that are not emitted still advance the scope: the observation keeps its known objects and its position (I1).
//
// A [Router] works on the other side of the journal. Each sink asks it while reading, so that a change can go to some sinks
// only.
//
// # Bytes, not maps
//
// Redaction is one pass over the bytes of an object and edits only secret values: numbers keep their spelling and members
// their order. An object without edits is passed on without a copy, and a rule that shapes nothing does not look into
// objects.
//
// # Fail closed
//
// An object that cannot be parsed is not shown: its change loses both bodies, event.Change.Withheld gives the reason, and
// every sink turns it into a dead letter. Errors give byte offsets and never quote the object.
//
// # Limits
//
// The package never logs and has no clock. It stores no state of objects itself. Errors come only from the storage that it
// wraps.
package shape
