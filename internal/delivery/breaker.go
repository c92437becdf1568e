package delivery

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// tolerated is how many changes in a row are believed to be rejected for what they are. A destination that rejects more
// than that, and accepts nothing, is away, and not a graveyard for the history.
const tolerated = 4

// breaker tells what an answer is about: rejected changes from a sink, or one of its destinations, that rejects everything;
// a sink that is away from one that says so to a single lane. It is safe for concurrent use.
type breaker struct {
	nameOf      func(sinks.Lane) string // of the destination of a lane
	rejections  atomic.Int64            // in a row, over all destinations
	acceptances atomic.Uint64           // of Publish calls, over all destinations

	mu           sync.Mutex
	destinations map[string]*destination
}

// destination is what accepts and rejects as a whole: a topic with all its partitions, a stream, a URL.
type destination struct {
	rejections atomic.Int64 // in a row, without an acceptance
	largest    atomic.Int64 // the size of the largest change that was accepted; 0 while none was
}

func newBreaker(sink sinks.Sink) *breaker {
	b := &breaker{destinations: map[string]*destination{}, nameOf: func(sinks.Lane) string { return "" }}
	if s, ok := sink.(sinks.Divided); ok {
		b.nameOf = s.Destination
	}
	return b
}

// of returns the destination of l. Only the worker that has the lane may call it.
func (b *breaker) of(l *lane) *destination {
	if l.destination == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		name := b.nameOf(l.name)
		if b.destinations[name] == nil {
			b.destinations[name] = &destination{}
		}
		l.destination = b.destinations[name]
	}
	return l.destination
}

// accepted notes which changes the destination of l has accepted.
func (b *breaker) accepted(l *lane, batch []sinks.Message) {
	d, size := b.of(l), 0
	for i := range batch {
		size = max(size, batch[i].Change.Size())
	}
	for was := d.largest.Load(); int64(size) > was && !d.largest.CompareAndSwap(was, int64(size)); was = d.largest.Load() {
	}
	d.rejections.Store(0)
	b.rejections.Store(0)
	b.acceptances.Add(1)
	l.turnedAway = 0
}

// laneError is an answer that closes the gate for all, given to one lane only: it is this lane's trouble.
type laneError struct {
	reason string
	after  time.Duration // that the destination asked for
}

func (e *laneError) Error() string { return e.reason }

// unavailable turns the answer that the destination is away into a failure of l alone, when others were accepted since l was
// told so the first time: a receiver that answers 503 to one object must not stop all others, again and again.
func (b *breaker) unavailable(l *lane, err error) error {
	now := b.acceptances.Load() + 1
	if l.turnedAway == 0 {
		l.turnedAway = now
	}
	var away *sinks.UnavailableError
	if l.turnedAway == now || !errors.As(err, &away) {
		return err
	}
	return &laneError{reason: away.Reason, after: away.After}
}

// rejected turns the rejection of the oldest change of l into a failure, after which the same change is tried again, when
// too many others came before it in a row. A change that is too large is believed to be, if it is larger than any that was
// accepted.
func (b *breaker) rejected(l *lane, change sinks.Message, err error) error {
	if l.tolerated == change.Offset { // it waits to become a dead letter
		return err
	}
	d := b.of(l)
	if largest := d.largest.Load(); largest > 0 && tooLarge(err) && int64(change.Change.Size()) > largest {
		l.tolerated = change.Offset
		return err
	}
	inRow := d.rejections.Add(1)
	if b.rejections.Add(1) > tolerated {
		return &sinks.UnavailableError{
			Reason: "every change is rejected and none accepted: is this the right destination? The last was " + err.Error(),
		}
	}
	if inRow > tolerated {
		return errors.New("every change is rejected here and none accepted; the last was " + err.Error())
	}
	l.tolerated = change.Offset
	return err
}

// tooLarge says that err rejects a change for its size.
func tooLarge(err error) bool {
	var never *sinks.RejectedError
	return errors.As(err, &never) && never.TooLarge
}
