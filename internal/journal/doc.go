// Package journal makes observations durable and remembers how far each sink got.
//
// An [Observation] (changes, the known objects they leave behind, the position they end at) enters by [Journal.Append] and
// is written by one committer as one atomic batch with everything else that is pending (I1). Only then do readers see its
// changes, each under its offset: 1, 2, 3, … without a hole. Every sink reads from its own place ([Journal.Read]), and
// stores how far it got, together with what it had to give up on, by [Journal.Settle] (I2). What every declared sink has
// settled is trimmed; what a slow sink still needs is kept up to a bound in bytes, and at the bound Append waits (I6).
//
// Memory is bounded whatever happens to the sinks: changes not yet committed, a tail of recent ones shared by all readers,
// and the store's own buffers. A sink that is behind reads from disk.
//
// The package never decides what changed, never talks to a sink, never drops a change that a declared sink has not settled,
// and never repairs a store by guessing: a broken one is moved aside and said so, see [Journal.PendingRecovery] (I7). The store is
// Pebble. Package codec has the stored form, as docs/journal-format.md specifies it, and package disk the files.
package journal
