package sinks

import (
	"context"

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
	// A nil error with 0 < n < len(batch) means that the sink has the rest in flight: it returned early so that the caller can
	// add messages to the batch. The next call for that lane starts with the same messages from n on or, after a
	// *RejectedError, from n+1 on. After one with TooLarge it may start with n again: a truncated change with the same offset
	// and ID.
	//
	// Calls are concurrent for different lanes, but never for one lane. Publish keeps no reference to batch or its changes
	// after it returns. It returns soon after ctx ends: messages in flight may or may not have been accepted then, and are
	// published again by a later call or a later process under the same change IDs.
	Publish(ctx context.Context, lane Lane, batch []Message) (n int, err error)

	// Close releases connections within ctx. No other method is running, or called afterwards.
	Close(ctx context.Context) error
}
