package sinks

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Lane names an ordered channel of a destination. Equal names mean the same channel, also after a restart: cursors are
// stored by lane, so that everything that decides which object belongs to which lane (a partition count, for example) must
// be part of the name.
type Lane string

// Message is one change on its way to one sink.
type Message struct {
	Offset uint64 // in the journal; ascending within a batch
	Change *event.Change
	Topic  *Template // replaces the sink's own topic or subject; nil: that. Only if the sink is a Router
}

// Sink is a destination. Implementations are safe for concurrent use except where noted.
type Sink interface {
	// Lane returns the lane of c: a deterministic function of c, the configuration and the current layout of the destination.
	// It never blocks and contacts nothing. If the destination has to be asked first, c belongs to a lane that exists for
	// that: its Publish asks, see [Repartitioner]. The only error is a *RejectedError. Calls are not concurrent with each
	// other, but with Publish.
	Lane(c *event.Change) (Lane, error)

	// Publish delivers a batch of one lane, in order. n is how many messages, counted from the first, the destination has
	// durably accepted; err is about batch[n].
	//
	// A nil error with 0 < n < len(batch) means that the next call goes on with the rest: the sink returned early so that the
	// caller can add messages to the batch, or knows what was accepted of a batch that takes seconds. (A sink of which it knows
	// nothing for ten seconds counts as silent.) That call starts with the same messages from n on or, after a *RejectedError,
	// from n+1 on. After one with TooLarge it may start with n again: a truncated change with the same offset and ID.
	//
	// Calls are concurrent for different lanes, but never for one lane. Publish keeps no reference to batch or its changes
	// after it returns. It returns soon after ctx ends: messages in flight may or may not have been accepted then, and are
	// published again by a later call or a later process under the same change IDs.
	Publish(ctx context.Context, lane Lane, batch []Message) (n int, err error)

	// Close releases connections within ctx. No other method is running, or called afterwards.
	Close(ctx context.Context) error
}

// A sink declares what it can do beyond [Sink] by implementing the interfaces of this file. All are optional. The methods
// that name, replace or release lanes (Lane, LaneTo, ResumeLanes, PendingRepartitions, ApplyRepartition, ReleaseLanes) are
// called one at a time.

// Router is a sink that can deliver single changes to another topic, or subject, than its own.
type Router interface {
	Sink

	// LaneTo returns the lane of a change that is published with this topic. LaneTo with nil is Lane.
	LaneTo(c *event.Change, topic *Template) (Lane, error)
}

// LaneLister is a sink that can name all lanes of a destination, for records that stand in each of them. A sink that has
// several lanes and is no LaneLister gets no such records.
type LaneLister interface {
	Sink

	// AllLanes returns every lane that objects of the resource of c may have changes in, in an order that numbers them. topic
	// is as in [Router]; nil is the sink's own. Objects share these lanes, so the names must not depend on the object. It is
	// called like Lane, and the caller does not modify the result.
	AllLanes(c *event.Change, topic *Template) ([]Lane, error)

	// StandsForSeveral reports whether a lane stands for others that are not known yet, because the destination has to be
	// asked first. Its Publish makes the copies of watermarks, see [WaitingWatermark].
	StandsForSeveral(lane Lane) bool
}

// WaitingWatermark reports whether a change is a watermark whose lanes were not known when it was queued: the sink publishes
// a copy to each, see event.Change.WithLane.
func WaitingWatermark(c *event.Change) bool {
	return c.Type == event.Watermark && c.Watermark.Lanes == 0
}

// MultiDestination is a sink with lanes to several destinations. Each of these can reject everything while the others work.
type MultiDestination interface {
	Sink

	// DestinationOf returns the name of what a lane leads to, such as a topic with all its partitions. It may be called at any
	// time.
	DestinationOf(lane Lane) string
}

// Concurrent is a sink that works best with another number of concurrent lanes than the caller's default.
type Concurrent interface {
	Sink

	// Concurrency returns how many lanes should be published at the same time.
	Concurrency() int
}

// Batched is a sink that works best with other batches than the caller's default.
type Batched interface {
	Sink

	// BatchLimits returns the largest batch of one Publish: messages, and bytes of changes.
	BatchLimits() (messages int, bytes int64)
}

// Pinger is a sink that can check its destination when there is nothing to deliver, so that readiness of an idle exporter is
// current.
type Pinger interface {
	Sink

	// Ping returns nil if the destination can be reached and accepts the credentials. Its errors mean the same as those of
	// Publish. It may run concurrently with Lane and Publish, and takes no longer than a few request timeouts.
	Ping(ctx context.Context) error
}

// ServerChecker is a sink that can connect to its servers and send nothing: those that its destination names, and others
// than [Pinger] needs.
type ServerChecker interface {
	Sink

	// CheckServers connects to each of them, and returns why some cannot be reached.
	CheckServers(ctx context.Context) error
}

// ConditionReporter is a sink that knows of problems beside failures of Publish: a quota that delays it, a setting of the
// destination that may lose changes.
type ConditionReporter interface {
	Sink

	// Conditions returns them; the component of each is "", for the whole sink. The sink logs each when it begins. It does not
	// block, and is called every few seconds: what has not happened for a while may end then.
	Conditions() []condition.Status
}

// SizeAnnouncer is a sink with a destination that announces how large a message may be.
type SizeAnnouncer interface {
	Sink

	// SizeLimit returns a check by the limit of a lane's destination: a *RejectedError with TooLarge for a message that the
	// destination would reject, nil for others. nil if no limit is known. It sends no message, and asks the destination only
	// every few seconds.
	SizeLimit(ctx context.Context, lane Lane) (check func(Message) error, err error)
}

// IsClearlyWithin reports whether a message fits into a limit in bytes in any format, which saves encoding what is small.
func (m Message) IsClearlyWithin(limit int) bool {
	const overhead = 2 << 10 // of a small change, with a reserve
	size := m.Change.Size()
	return size+size/4+overhead <= limit
}

// LaneReleaser is a sink that holds something for each lane it has published to.
type LaneReleaser interface {
	Sink

	// ReleaseLanes releases lanes that have been idle for a while: everything published through them is accepted and stored as
	// such. They may be used again later.
	ReleaseLanes(lanes []Lane)
}

// Repartitioner is a sink that can replace lanes by others while it runs, because a topic gets more partitions, or is
// found to have any. Until ApplyRepartition is called, Lane returns the old ones, so that an object never has changes in
// flight through two lanes. // I3
type Repartitioner interface {
	Sink

	// ResumeLanes passes the lanes in which an earlier process left changes undelivered. Lane returns these, and no others for
	// the objects that belong to them, until they are repartitioned. It is called before Lane and PendingRepartitions.
	ResumeLanes(lanes []Lane)

	// PendingRepartitions returns which lanes have to be replaced, until they are. It is called several times a second and does
	// not block: requests that it needs run in the background.
	PendingRepartitions() []Repartition

	// ApplyRepartition makes Lane return r.To for the objects of r.From from now on. Nothing is published to these lanes during
	// the call; and unless they are lost, nothing of them is in doubt: their last Publish has succeeded.
	ApplyRepartition(r Repartition)
}

// Repartition is a set of lanes that have to be replaced together.
type Repartition struct {
	Reason string // for the log: `topic "x" has 6 partitions now, and had 3`; "" for no line
	From   []Lane // what Lane returns now
	To     []Lane // what it will return instead for the objects of From, and for no others
	Lost   bool   // the destination has lost From with everything in it, and accepts nothing there any more
}

// SettleObserver is a sink that acts when everything up to a message is settled.
type SettleObserver interface {
	Sink

	// ObserveSettled is called when every message up to low is accepted or a durable dead letter, and the cursor is stored:
	// none of them is published any more. low does not fall, except after a [LostError]. Calls are not concurrent with each
	// other, but with Publish. It does not block.
	ObserveSettled(low uint64)
}

// Stateful is a sink that can find out, after a crash, which of the messages that were in flight its destination has
// accepted. For that it needs its state: a few bytes that the caller stores with every cursor, in the same atomic
// write, and passes back at the next start. A sink that is not Stateful publishes such messages again.
//
// A state is only valid if the caller keeps these promises, otherwise a sink could take one message for another and count it
// as accepted:
//
//   - It passes a state back under an exclusive lock, together with the cursors that it was stored with, and only if the
//     sink will get the same messages for the same lanes in the same order as it would have in the earlier process. If a
//     filter, the format or the destination has changed, newest is 0.
//   - After a RejectedError, or one of [SizeAnnouncer], the outcome of the message is durable before the next Publish of its lane.
type Stateful interface {
	Sink

	// RestoreState is called before any other method, and again after a [LostError], while nothing is published. state is what
	// State returned for the cursors that the caller starts from; nil if there is none. Messages with an offset above newest
	// were never given to the earlier process; if newest is 0, it had others. save stores State together with the cursors, and
	// returns nil when both are durable; the sink may call it from Publish. After an error, which means that state cannot be
	// decoded, the sink works as without one.
	RestoreState(state []byte, newest uint64, save func(ctx context.Context) error) error

	// State returns the current state. The cursors it will be stored with were taken before: every message they pass was
	// acknowledged, or is a durable dead letter, and no message up to low is published any more. It is called concurrently
	// with Publish and does not wait for the destination.
	State(low uint64) []byte
}

// StoredLane is one ordered part of what a destination stores: a partition of a topic, or a stream.
type StoredLane struct {
	Target string // the topic or stream
	Index  int    // of the lane in the target, from 0
	Count  int    // of the target's lanes

	First, End int64 // position of the oldest record, and the one after the newest
	// Replaces reports whether a newer record of an object may remove an older one: compaction, or a limit by subject. It is
	// true if that cannot be found out.
	Replaces bool
	// Truncated reports whether records before First are gone, other than by replacement.
	Truncated bool
}

// StoredRecord is a record as a destination stores it. It is valid during the call that passes it.
type StoredRecord struct {
	Lane     int    // index of its span in the call of ReadStored
	Position int64  // in its lane
	Key      string // with what a newer record takes its place: that of the object, or the subject where that names none
	Value    []byte
	Header   func(name string) string // by the names in package format; "" if there is none
	// RemovesUnnamed reports whether the record removes the value of a key, and does not name the object: as an operator or
	// a repair of a bucket does.
	RemovesUnnamed bool
}

// StoredSpan is a part of a lane: positions from From up to, and without, To.
type StoredSpan struct {
	StoredLane
	From, To int64
}

// StoredReader reads back what a destination stores, with connections of its own and without changing anything there.
type StoredReader interface {
	// Targets returns the topics that exist and that the sink's own template may name, or those of routes, or the stream.
	// What is no template is returned whether it exists or not.
	Targets(ctx context.Context, routed ...string) ([]string, error)

	// StoredLanes returns the lanes of a topic, or of the stream.
	StoredLanes(ctx context.Context, target string) ([]StoredLane, error)

	// ReadStored passes the records of spans, those of one lane in order, to each, which is called once at a time. An error of
	// each ends the reading and is returned as it is. The position of a record that is gone is skipped.
	ReadStored(ctx context.Context, spans []StoredSpan, each func(StoredRecord) error) error

	// Close closes the connections within ctx.
	Close(ctx context.Context) error
}
