// Package state keeps the replicated state in a compacted topic of one partition, which a transactional ID fences. See
// [sinks.StateStore], docs/state-format.md and docs/adr/0047.
package state
