package delivery

import (
	"cmp"
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Journal is what a pipeline needs of the journal.
type Journal interface {
	// Read returns the records that follow an offset: at least one, ascending, without a hole. It blocks until there is one
	// or ctx ends. Changes may alias one buffer; the pipeline does not modify them. An error ends the pipeline. Several
	// goroutines call it concurrently: the dispatcher, the catch-up reader, and workers that look ahead.
	Read(ctx context.Context, after uint64) ([]event.Record, error)

	// Settle stores the cursor and the dead letters in one atomic write, which is durable when it returns nil (I2). After an
	// error it is open whether they are stored, and a later call has both again: dead letters are identified by their Offset.
	// Calls are not concurrent.
	Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error
}

// Config bounds one pipeline. The zero value of a field stands for its default. Its functions are called concurrently.
type Config struct {
	Retry RetryConfig

	// FormerName is the name that the sink had before; "" for none. Records for that name alone are for this sink.
	FormerName string

	// SuspectAfter: a destination that has accepted nothing for so long, or nothing yet, and has rejected 20 changes, or any
	// other one that has rejected 100 in a row, is suspected to reject everything; no further changes become dead letters until it
	// accepts one. Default 10 minutes; negative: every rejection is believed.
	SuspectAfter time.Duration

	// WindowBytes bounds the changes that are read but not settled, by event.Change.Size. A larger single change passes alone.
	// The changes are copies, which keep no journal frame alive. By default 16 MiB, and 16 KiB more for each lane, up to
	// 64 MiB.
	WindowBytes int64

	// Workers bounds concurrent Publish calls, and so how many lanes are in flight. Default 8: a Publish waits for the
	// network most of its time.
	Workers int

	// BatchBytes and BatchMessages bound one Publish; a larger single change is a batch of its own. Defaults 960 KiB, which
	// with the envelopes of the changes mostly fits one request of a megabyte, and 1000. Sinks that have several requests in
	// flight in one Publish ask for more, see [sinks.Batched].
	BatchBytes    int64
	BatchMessages int

	// Rate bounds messages per second, retries included; 0, the default, is no limit. Burst is how many may be sent at once,
	// by default one second's worth. Batches are never larger than Burst.
	Rate  float64
	Burst int

	// Route returns whether a change is for this sink, and its topic; nil sends all changes to the sink's own topic. It must
	// be a pure function of the change and of what the pipeline's layout names.
	Route func(*event.Change) Route

	// AlreadyDelivered reports whether an earlier process delivered a change through this lane; such a change is settled when
	// it is read. Like Route it must be a pure function. nil: none was.
	AlreadyDelivered func(sinks.Lane, *event.Change) bool

	// WhyHeld returns why nothing may be published to a lane yet; nil if it may be, which does not change any more. The changes
	// of a held lane stay in the journal, and AlreadyDelivered is asked about them when it is held no longer. nil: none is.
	WhyHeld func(sinks.Lane) error

	// Pause holds back every Publish while it is on. It is shared by all pipelines of the sink. nil: it is never on.
	Pause *PauseSwitch

	// Truncate returns a copy of a change that the sink rejected as too large, with less in it and the same ID; false if
	// nothing is left to remove. It must be a pure function. nil: every change that is too large becomes a dead letter.
	Truncate func(*event.Change) (*event.Change, bool)

	// PublishDeadLetter publishes a dead letter before it is stored. A *sinks.RejectedError means that it is only stored, with
	// that error as part of the reason; after any other error the lane waits and tries again. It is called again for the same
	// change after a crash. nil: dead letters are only stored.
	PublishDeadLetter func(ctx context.Context, c *event.Change, reason string) error

	// ObservePublish is called with the duration of each Publish. May be nil.
	ObservePublish func(time.Duration)

	// OnAcknowledged is called for each change as soon as the destination has acknowledged it. It must not block and not keep
	// the change. May be nil.
	OnAcknowledged func(*event.Change)

	// SettleInterval is how often progress is stored, and so how much is sent again after a crash. Default 200 ms.
	SettleInterval time.Duration

	// NewestOffset is the newest offset of the journal before this process appended to it. RoutingFingerprint changes with
	// everything that decides which changes reach which lane in which order: routes, the format, the sink's topic and address,
	// and how this version of the program applies them. Both are for a [sinks.Stateful]: its stored state counts only
	// under the same RoutingFingerprint.
	NewestOffset       uint64
	RoutingFingerprint string
}

// Route is the destination of one change.
type Route struct {
	Skip  bool            // not for this sink
	Topic *sinks.Template // nil: the sink's own; otherwise the sink must be a sinks.Router
	// Partial is set for a watermark if the sink does not get all changes of its scope: it loses its digest.
	Partial bool
}

// RetryConfig bounds the waits after failures, of a lane and of the whole sink: they grow from Min to Max, with jitter.
// Retries never end. Defaults 100 ms and 30 s.
type RetryConfig struct {
	Min, Max time.Duration
}

// probeMax returns the longest wait between two attempts at a destination that is away as a whole.
func (c RetryConfig) probeMax() time.Duration { return max(c.Min, min(c.Max, maxProbeDelay)) }

// withDefaults returns c with every zero field set.
func (c Config) withDefaults() Config {
	c.Retry.Min = cmp.Or(c.Retry.Min, 100*time.Millisecond)
	c.Retry.Max = cmp.Or(c.Retry.Max, max(30*time.Second, c.Retry.Min))
	c.SuspectAfter = cmp.Or(c.SuspectAfter, 10*time.Minute)
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
