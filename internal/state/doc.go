// Package state keeps what has to outlive this machine in the bus of a sink, so that another process can go on where this
// one ends: the known objects, the position of each scope, how far each lane of each sink is covered, and who writes.
//
// The state follows the journal behind what all sinks have settled, so it is never ahead of what was delivered. It may lag;
// what lies between it and the end of a lane is read from the lane itself, see [Writer.TakeOver].
//
//	journal ─▶ pipelines ─▶ sinks
//	   │            │ settled by all
//	   └──────▶ Keeper.Run ─▶ sinks.StateStore     known objects; a mark about every 200 ms: positions, places
//
// A mark is taken in this order: first the places of all sinks, then, at once, the newest offset and the positions of the
// journal. What is published after that lies behind the places, and is read again by whoever takes over; what was journaled
// before is in the state once every sink has settled it. So the mark is written then, and no earlier.
//
// docs/state-format.md specifies what is stored, and docs/high-availability.md says what it is for.
package state
