// Package state replicates what has to outlive this machine to the bus of a sink, so that another exporter can continue
// where this one ended: the known objects, the position of each scope, how far each lane of each sink is covered, and the
// owner.
//
// The state follows the journal behind what all sinks have settled, so it is never ahead of what was delivered. It may lag.
// A take-over reads the rest from the lanes themselves, see [Writer.TakeOver].
//
//	journal ─▶ pipelines ─▶ sinks
//	   │            │ settled by all
//	   └──────▶ Writer.Run ─▶ sinks.StateStore     known objects; a checkpoint every 200 ms: positions, lane progress
//
// DESIGN.md describes the parts and their invariants, FORMAT.md the stored format, and docs/high-availability.md the use.
package state
