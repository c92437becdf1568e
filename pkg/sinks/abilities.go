package sinks

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// What a sink can do beyond [Sink] it declares by implementing the interfaces of this file. All are optional. Of the methods
// that name, replace or forget lanes (Lane, LaneTo, Resume, Repartitions, Repartition, Forget) one is called at a time.

// Router is a sink that can deliver single changes to another topic, or subject, than its own.
type Router interface {
	Sink

	// LaneTo is Lane for a change that is published with this topic. LaneTo with nil is Lane.
	LaneTo(c *event.Change, topic *Template) (Lane, error)
}

// MultiDestination is a sink whose lanes lead to several destinations, each of which can reject everything while the others work.
type MultiDestination interface {
	Sink

	// DestinationOf names what a lane leads to: a topic, with all its partitions. It may be called at any time.
	DestinationOf(lane Lane) string
}

// Concurrent is a sink that does best with another number of lanes at a time than the caller's default.
type Concurrent interface {
	Sink

	// Concurrency is how many lanes are worth publishing at the same time.
	Concurrency() int
}

// Batched is a sink that does best with other batches than the caller's default.
type Batched interface {
	Sink

	// BatchLimits is how much of a lane one Publish should be handed: messages, and bytes of changes.
	BatchLimits() (messages int, bytes int64)
}

// RecordOmitter is a sink with no place for control records, such as gaps: it accepts them and counts them.
type RecordOmitter interface {
	Sink

	// OmittedRecords counts them.
	OmittedRecords() uint64
}

// Pinger is a sink that can look for its destination when there is nothing to deliver, so that an idle exporter is not
// taken for a working one.
type Pinger interface {
	Sink

	// Ping returns nil when the destination can be reached and lets us in; its errors mean what those of Publish mean. It
	// may run while others call Lane and Publish, and takes no longer than a few request timeouts.
	Ping(ctx context.Context) error
}

// SlowdownReporter is a sink that knows when its destination makes it wait, without an error.
type SlowdownReporter interface {
	Sink

	// SlowdownReason says why changes are delivered slowly, in one line; "" when they are not. It does not wait.
	SlowdownReason() string
}

// Warner is a sink that knows how its destination may lose changes that it accepts, or why it is used in a lesser way.
type Warner interface {
	Sink

	// Warnings says so, each in one line with the remedy; none when all is well. They stop nothing. The sink logs each
	// when it begins. It does not wait.
	Warnings() []string
}

// LaneReleaser is a sink that holds something for each lane it has published to.
type LaneReleaser interface {
	Sink

	// ReleaseLanes says that everything that was published through these lanes is accepted and stored as such, and that they have
	// been idle for a while. They may be used again later.
	ReleaseLanes(lanes []Lane)
}

// Repartitioner is a sink whose lanes can be replaced by others while it runs: a topic gets more partitions, or is found
// to have any. Until Repartition is called, Lane goes on to name the old ones, so that an object never has changes on
// their way through two lanes. // I3
type Repartitioner interface {
	Sink

	// ResumeLanes says in which lanes a process before has left changes undelivered. Lane names these, and no others for the
	// objects that belong to them, until they are repartitioned. It is called before Lane and Repartitions.
	ResumeLanes(lanes []Lane)

	// PendingRepartitions says which lanes are to be replaced, until they are. It is asked several times a second and does not
	// wait: what the destination has to be asked for, it asks in the background.
	PendingRepartitions() []Repartition

	// ApplyRepartition makes Lane name r.To for the objects of r.From from now on. Meanwhile nothing is published to these lanes;
	// and unless they are gone, nothing of them is in doubt: their last Publish has succeeded.
	ApplyRepartition(r Repartition)
}

// Repartition is a set of lanes that are to be replaced together.
type Repartition struct {
	Reason string // for the log: `topic "x" has 6 partitions now, and had 3`; "" where there is nothing to tell
	From   []Lane // what Lane names now
	To     []Lane // what it is to name instead for the objects of From, and for no others
	Lost   bool   // From takes nothing any more, ever: the destination has lost it with all that was in it
}

// SettleObserver is a sink with something to do when everything up to a message is settled.
type SettleObserver interface {
	Sink

	// ObserveSettled says that every message up to low is accepted or a durable dead letter, that the cursor that says so is
	// stored, and that none of them is published any more. low does not fall, unless there was a [LostError]. Called by one
	// goroutine at a time, concurrently with Publish; it does not wait.
	ObserveSettled(low uint64)
}

// Stateful is a sink that can find out, after a crash, which of the messages that were in flight its destination has
// accepted. What it needs for that is its state: a few bytes that the caller stores with every cursor, in the same
// atomic write, and hands back at the next start. A sink that is not Stateful publishes such messages again.
//
// A state is only as good as what the caller promises with it:
//
//   - It hands a state back under an exclusive lock, together with the very cursors it was stored with, and only when the
//     sink will be asked to publish the same messages to the same lanes in the same order as the process before would
//     have been. When a filter, the format or the destination has changed, there is no state.
//   - After a RejectedError, what became of the message is durable before the next Publish of its lane.
//
// Else a sink could take one message for another and count it as accepted.
type Stateful interface {
	Sink

	// RestoreState is called before any other method, and again after a [LostError], while nothing is published. state is what
	// State returned when the cursors were stored that the caller begins with; nil when there is none. Messages with an
	// offset above newest were never given to the process before. save stores State together with the cursors, and returns
	// nil when both are durable; the sink may call it from Publish. An error says that state cannot be read; the sink then
	// goes on as without one.
	RestoreState(state []byte, newest uint64, save func(ctx context.Context) error) error

	// State returns the state as it is now. The cursors it will be stored with were taken before: every message they
	// pass was acknowledged, or is a durable dead letter, and no message up to low is published any more. Called
	// concurrently with Publish; it does not block on the destination.
	State(low uint64) []byte
}
