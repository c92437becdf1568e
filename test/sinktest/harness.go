package sinktest

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Harness describes a destination to the suite. Its functions are called from the test's goroutine, and fail the test
// themselves when something outside the contract goes wrong.
type Harness struct {
	// New opens a sink on the destination. The suite closes it. Every call means the same destination and the same
	// configuration, as a restart of the exporter does; several sinks may be open at once.
	New func(t testing.TB) sinks.Sink

	// Read returns everything the destination holds now. The order matters only between messages of one lane. It is
	// called while the destination is reachable and nothing is being published.
	Read func(t testing.TB) []Delivered

	// Key is what Delivered.Key must be for c. Nil means that the destination has no keys.
	Key func(c *event.Change) string

	// Value is what Delivered.Value must be for c. Nil means the native JSON form.
	Value func(c *event.Change) []byte

	// Tombstones says that every deleted change is followed, in its lane, by a tombstone of the same key. It needs Key.
	Tombstones bool

	// OrderPerObject says that the destination keeps the order of each object, and not that of the different objects of a
	// lane.
	OrderPerObject bool

	// StateOnly says that the destination keeps the state of objects, and has no place for control records: they are
	// acknowledged and not held.
	StateOnly bool

	// ExactRetry says that a message which is published again by the same sink after an error is held once, whether or
	// not it was accepted the first time.
	ExactRetry bool

	// ExactReplay says that acknowledged messages which are published again by a later sink are held once.
	ExactReplay bool

	// ExactRestart says that messages which were in flight when a sink died, or acknowledged after its state was stored
	// last, are held once when its successor publishes them again. The sink is a [sinks.Stateful].
	ExactRestart bool

	// Topics are templates of topics that a [sinks.Router] can publish to beside its own; none where the sink is no
	// Router. Read reads these topics, too, and says which of them has a message. Escape writes a value into the name of
	// a topic as the sink does; nil takes it as it is.
	Topics []string
	Escape func(dst []byte, token string) []byte

	// Grow changes the layout of the destination, so that objects belong to other lanes: a topic gets more partitions. The
	// sink is a [sinks.Repartitioner]. Nil where that does not happen.
	Grow func(t testing.TB)

	// Cut makes the destination unreachable and Restore makes it reachable again. Both are nil if that cannot be done.
	Cut, Restore func(t testing.TB)

	// Slow makes the destination's answers come late, or no longer late; best so late that the sink has given them up.
	// Throttle makes it ask for time, as HTTP does by 429, or no longer. Nil if that cannot be done.
	Slow, Throttle func(t testing.TB, on bool)
}

// Delivered is one message as a consumer sees it.
type Delivered struct {
	ID        string // change ID; empty on tombstones
	Key       string // empty where the destination has no keys
	Value     []byte // empty on tombstones
	Tombstone bool   // says that the object of this key is gone, in a form the destination itself understands
	Topic     string // that holds it; may be empty where the harness names no Topics
}

func (h Harness) expectedValue(c *event.Change) string {
	if h.Value != nil {
		return string(h.Value(c))
	}
	return string(format.AppendJSON(nil, c))
}

func (h Harness) expectedKey(c *event.Change) string {
	if h.Key == nil {
		return ""
	}
	return h.Key(c)
}
