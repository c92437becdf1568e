// Package journal makes observations durable, and stores how far each sink got.
//
// An observation (changes, the known objects after them, the position at their end) enters by [Journal.Append]. One
// committer writes it as one atomic batch with everything else that is pending (I1). Only then are its changes visible to
// readers, each under its offset: 1, 2, 3, … without a hole. Every sink reads from its own offset ([Log.Read]), and stores
// its cursor, together with its dead letters, by [SinkLedger.Settle] (I2). Changes that every declared sink has settled are
// trimmed; changes that a slow sink still needs are kept up to a bound in bytes, and at the bound Append waits (I6).
//
// Memory is bounded whatever the sinks do: changes that are not committed yet, a tail of recent ones shared by all readers,
// and the store's own buffers. A sink that is behind reads from disk.
//
// The package never decides what changed, never calls a sink, never drops a change that a declared sink has not settled, and
// never repairs a store by guessing: a broken one is moved aside, and [Identity.PendingRecovery] reports it (I7). The store
// is Pebble. Package codec has the stored form, as internal/journal/FORMAT.md specifies it, and package disk the files.
// DESIGN.md has the parts and their locks.
package journal
