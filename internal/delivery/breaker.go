package delivery

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxToleratedRejections is how many changes in a row are believed to be rejected for what they are. A destination that rejects more
// than that, and accepts nothing, is away, and not a graveyard for the history.
const maxToleratedRejections = 4

// breaker tells what an answer is about: rejected changes from a sink, or one of its destinations, that rejects everything;
// a sink that is away from one that says so to a single lane. It is safe for concurrent use.
type breaker struct {
	destinationName func(sinks.Lane) string // of the destination of a lane
	rejections      atomic.Int64            // in a row, over all destinations
	acceptances     atomic.Uint64           // of Publish calls, over all destinations

	mu           sync.Mutex
	destinations map[string]*destination
}

// destination is what accepts and rejects as a whole: a topic with all its partitions, a stream, a URL.
type destination struct {
	rejections atomic.Int64 // in a row, without an acceptance
	largest    atomic.Int64 // the size of the largest change that was accepted; 0 while none was
}

func newBreaker(sink sinks.Sink) *breaker {
	b := &breaker{destinations: map[string]*destination{}, destinationName: func(sinks.Lane) string { return "" }}
	if s, ok := sink.(sinks.MultiDestination); ok {
		b.destinationName = s.DestinationOf
	}
	return b
}

// destinationOf returns the destination of l. Only the worker that has the lane may call it.
func (b *breaker) destinationOf(l *lane) *destination {
	if l.destination == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		name := b.destinationName(l.name)
		if b.destinations[name] == nil {
			b.destinations[name] = &destination{}
		}
		l.destination = b.destinations[name]
	}
	return l.destination
}

// recordAcceptance notes which changes the destination of l has accepted.
func (b *breaker) recordAcceptance(l *lane, batch []sinks.Message) {
	d, size := b.destinationOf(l), 0
	for i := range batch {
		size = max(size, batch[i].Change.Size())
	}
	for was := d.largest.Load(); int64(size) > was && !d.largest.CompareAndSwap(was, int64(size)); was = d.largest.Load() {
	}
	d.rejections.Store(0)
	b.rejections.Store(0)
	b.acceptances.Add(1)
	l.unavailableSince = 0
}

// laneError is an answer that closes the gate for all, given to one lane only: it is this lane's trouble.
type laneError struct {
	reason string
	after  time.Duration // that the destination asked for
}

func (e *laneError) Error() string { return e.reason }

// judgeUnavailable turns the answer that the destination is away into a failure of l alone, when others were accepted since l was
// told so the first time: a receiver that answers 503 to one object must not stop all others, again and again.
func (b *breaker) judgeUnavailable(l *lane, err error) error {
	now := b.acceptances.Load() + 1
	if l.unavailableSince == 0 {
		l.unavailableSince = now
	}
	var away *sinks.UnavailableError
	if l.unavailableSince == now || !errors.As(err, &away) {
		return err
	}
	return &laneError{reason: away.Reason, after: away.After}
}

// judgeRejection turns the rejection of the oldest change of l into a failure, after which the same change is tried again, when
// too many others came before it in a row. A change that is too large is believed to be, if it is larger than any that was
// accepted.
func (b *breaker) judgeRejection(l *lane, change sinks.Message, err error) error {
	if l.toleratedOffset == change.Offset { // it waits to become a dead letter
		return err
	}
	d := b.destinationOf(l)
	if largest := d.largest.Load(); largest > 0 && isTooLarge(err) && int64(change.Change.Size()) > largest {
		l.toleratedOffset = change.Offset
		return err
	}
	inRow := d.rejections.Add(1)
	if b.rejections.Add(1) > maxToleratedRejections {
		return &sinks.UnavailableError{
			Reason: "every change is rejected and none accepted: is this the right destination? The last was " + err.Error(),
		}
	}
	if inRow > maxToleratedRejections {
		return errors.New("every change is rejected here and none accepted; the last was " + err.Error())
	}
	l.toleratedOffset = change.Offset
	return err
}

// isTooLarge says that err rejects a change for its size.
func isTooLarge(err error) bool {
	var never *sinks.RejectedError
	return errors.As(err, &never) && never.TooLarge
}
