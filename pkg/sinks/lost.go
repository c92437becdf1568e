package sinks

import "fmt"

// LostError says that the destination no longer holds messages it had accepted, as after a power loss or when an old backup
// took its place. The caller goes back and publishes again what follows From; a sink that is [Stateful] is restored before
// that, with nil where the caller has no state of that time. Until then the sink publishes nothing.
type LostError struct {
	From   uint64 // every message up to this offset is still there, as far as the sink knows; 0 when it knows of none
	Reason string // for people and the log
}

func (e *LostError) Error() string {
	return fmt.Sprintf("accepted messages are lost behind offset %d: %s", e.From, e.Reason)
}
