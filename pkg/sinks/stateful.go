package sinks

import "context"

// Stateful is a sink that can find out, after a crash, which of the messages that were in flight its destination has
// accepted. What it needs for that is its state: a few bytes that the caller stores with every cursor, in the same
// atomic write, and hands back at the next start. A sink that is not Stateful publishes such messages again.
//
// A state is only as good as what the caller promises with it:
//
//   - It hands a state back under an exclusive lock, together with the very cursors it was stored with, and only when the
//     sink will be asked to publish the same messages to the same lanes in the same order as the process before would
//     have been. When a filter, a format or the configuration of the sink has changed, there is no state.
//   - After a RejectedError, what became of the message is durable before the next Publish of its lane.
//
// Else a sink could take one message for another and count it as accepted.
type Stateful interface {
	Sink

	// Restore is called before any other method, and again after a [LostError], while nothing is published. state is what
	// State returned when the cursors were stored that the caller begins with; nil when there is none. Messages with an
	// offset above newest were never given to the process before. save stores State together with the cursors, and returns
	// nil when both are durable; the sink may call it from Publish. An error says that state cannot be read; the sink then
	// goes on as without one.
	Restore(state []byte, newest uint64, save func(ctx context.Context) error) error

	// State returns the state as it is now. The cursors it will be stored with were taken before: every message they
	// pass was acknowledged, or is a durable dead letter, and no message up to low is published any more. Called
	// concurrently with Publish; it does not block on the destination.
	State(low uint64) []byte
}
