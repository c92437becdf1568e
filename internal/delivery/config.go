package delivery

import (
	"cmp"
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Config bounds one pipeline. The zero value of a field stands for its default.
type Config struct {
	Retry RetryConfig

	// WindowBytes bounds the changes that are read but not yet settled, by event.Change.Size. A larger single change
	// passes alone. Changes hold no more than that: they are copies, which keep no journal frame alive. Default 32 MiB.
	WindowBytes int64

	// Workers bounds concurrent Publish calls, and so how many lanes are in flight. Default 8: Publish waits for a
	// network most of its time.
	Workers int

	// BatchBytes and BatchMessages bound one Publish; a larger single change is a batch of its own. Defaults 960 KiB, which
	// with the envelope of a change mostly fits one request where destinations take a megabyte, and 1000. A sink that has
	// several requests on its way in one Publish asks for more.
	BatchBytes    int64
	BatchMessages int

	// Rate bounds messages a second, retries included; 0, the default, is no limit. Burst is how many may go at once,
	// by default one second's worth. Batches are never larger than Burst.
	Rate  float64
	Burst int

	// Route says which changes are for this sink, and where they go; nil sends all to the sink's own topic. It must be a
	// pure function of the change and of what the pipeline's layout names. Called concurrently.
	Route func(*event.Change) Route

	// IsFenced says that the sink was fenced, see [sinks.IsFenced]: it is not restored, though it may be a [sinks.Stateful].
	IsFenced bool

	// AlreadyDelivered says which changes the destination has already in the lane they belong to, from a process before: they are
	// settled as they are read. Like Route it must be a pure function, and is called concurrently. nil: none.
	AlreadyDelivered func(sinks.Lane, *event.Change) bool

	// Truncate makes a copy of a change that the sink refused as too large, with less in it and the same ID, or says that
	// there is nothing left to take out. It must be a pure function. nil makes dead letters of all that is too large.
	Truncate func(*event.Change) (*event.Change, bool)

	// PublishDeadLetter publishes a dead letter elsewhere before it is stored, with the reason. A *sinks.RejectedError says that this
	// cannot be, which becomes part of the stored reason; after any other error it is tried again, and the lane waits.
	// Called concurrently, for the same change again after a crash. nil: they are only stored.
	PublishDeadLetter func(ctx context.Context, c *event.Change, reason string) error

	// ObservePublish, where set, is told how long each Publish took. Called concurrently.
	ObservePublish func(time.Duration)

	// OnAcknowledged, where set, is told of each change that the destination acknowledged, at once. Called concurrently; it
	// must neither wait nor keep the change.
	OnAcknowledged func(*event.Change)

	// SettleInterval is how often progress is stored, and so how much is sent again after a crash. Default 200 ms.
	SettleInterval time.Duration

	// NewestOffset is the newest offset of the journal before this process appended to it. Selection names what decides which
	// changes reach which lane in which order: routes, the format, the sink's topic and address, and what the program makes
	// of them. Both are for a sinks.Stateful, whose stored state counts only under the same Selection.
	NewestOffset       uint64
	RoutingFingerprint string
}

// Route is where one change goes.
type Route struct {
	Skip  bool            // not to this sink
	Topic *sinks.Template // nil is the sink's own; else the sink must be a sinks.Router
}

// RetryConfig bounds the waits after failures, of a lane and of the whole sink: they grow from Min to Max, with jitter.
// Retries have no end. Defaults 100 ms and 30 s.
type RetryConfig struct {
	Min, Max time.Duration
}

// withDefaults returns c with every zero field set.
func (c Config) withDefaults() Config {
	c.Retry.Min = cmp.Or(c.Retry.Min, 100*time.Millisecond)
	c.Retry.Max = cmp.Or(c.Retry.Max, max(30*time.Second, c.Retry.Min))
	c.WindowBytes = cmp.Or(c.WindowBytes, 32<<20)
	c.Workers = cmp.Or(c.Workers, 8)
	c.BatchBytes = cmp.Or(c.BatchBytes, 15<<16)
	c.BatchMessages = cmp.Or(c.BatchMessages, 1000)
	c.SettleInterval = cmp.Or(c.SettleInterval, 200*time.Millisecond)
	if c.Rate > 0 {
		c.Burst = cmp.Or(c.Burst, max(1, int(c.Rate)))
		c.BatchMessages = min(c.BatchMessages, c.Burst)
	}
	return c
}
