package sinktest

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Harness describes a destination. Its functions are called from the goroutine of the test, and fail the test themselves
// when something outside the contract goes wrong.
type Harness struct {
	// New opens a sink on the destination, which the suite closes. Every call uses the same destination and configuration, as
	// after a restart of the exporter; several sinks may be open at once.
	New func(t testing.TB) sinks.Sink

	// Read returns everything the destination holds. Only the order within a lane matters. It is called while the destination
	// is reachable and nothing is being published.
	Read func(t testing.TB) []Delivered

	// Key returns the expected Delivered.Key for c. Nil: the destination has no keys.
	Key func(c *event.Change) string

	// Value returns the expected Delivered.Value for c. Nil: the native JSON form.
	Value func(c *event.Change) []byte

	// Tombstones: every deleted change is followed, in its lane, by a tombstone of the same key. Requires Key.
	Tombstones bool

	// OrderPerObject: the destination keeps the order of each object, but not that of different objects of a lane.
	OrderPerObject bool

	// StateOnly: the destination keeps the state of objects and has no place for control records, which are acknowledged but
	// not stored.
	StateOnly bool

	// ExactRetry: a message that the same sink publishes again after an error is stored once, whether or not it was accepted
	// the first time.
	ExactRetry bool

	// ExactReplay: acknowledged messages that a later sink publishes again are stored once.
	ExactReplay bool

	// ExactRestart: messages that were in flight when a sink died, or acknowledged after its state was stored last, are stored
	// once when its successor publishes them again. The sink is a [sinks.Stateful].
	ExactRestart bool

	// Topics are templates of topics that a [sinks.Router] can publish to in addition to its own; none if the sink is no
	// Router. Read reads these topics as well and sets Delivered.Topic. Escape appends a value to the name of a topic as the
	// sink does; nil: unchanged.
	Topics []string
	Escape func(dst []byte, token string) []byte

	// Grow changes the layout of the destination, so that objects belong to other lanes: a topic gets more partitions. The sink
	// is a [sinks.Repartitioner]. Nil: the layout never changes.
	Grow func(t testing.TB)

	// Cut makes the destination unreachable and Restore makes it reachable again. Both are nil if that is not possible.
	Cut, Restore func(t testing.TB)

	// Slow delays the responses of the destination, or ends that; ideally they come after the timeout of the sink. Throttle
	// makes it ask to retry later, as HTTP does by 429, or ends that. Nil if that is not possible.
	Slow, Throttle func(t testing.TB, on bool)
}

// Delivered is one message as a consumer sees it.
type Delivered struct {
	ID        string // change ID; empty on tombstones
	Key       string // empty where the destination has no keys
	Value     []byte // empty on tombstones
	Tombstone bool   // deletes the key in the destination's own terms
	Topic     string // may be empty if the harness has no Topics
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
