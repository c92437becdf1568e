package delivery

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxToleratedRejections is how many changes in a row may be rejected before the destination counts as unavailable. A
// destination that rejects everything and accepts nothing is the wrong one, or broken: the history must not become dead
// letters.
const maxToleratedRejections = 4

// breaker decides whether an answer is about one change, one lane, one destination or the whole sink. Safe for concurrent
// use, except where noted.
type breaker struct {
	destinationName func(sinks.Lane) string
	rejections      atomic.Int64  // in a row, over all destinations
	acceptances     atomic.Uint64 // of Publish calls, over all destinations

	mu           sync.Mutex
	destinations map[string]*destination // by name; never removed
}

// destination accepts and rejects as a whole: a topic with all its partitions, a stream, a URL.
type destination struct {
	rejections atomic.Int64 // in a row
	largest    atomic.Int64 // size of the largest change that was accepted; 0: none was
}

func newBreaker(sink sinks.Sink) *breaker {
	b := &breaker{destinations: map[string]*destination{}, destinationName: func(sinks.Lane) string { return "" }}
	if s, ok := sink.(sinks.MultiDestination); ok {
		b.destinationName = s.DestinationOf
	}
	return b
}

// destinationOf returns the destination of l. Only the worker that holds the lane may call it.
func (b *breaker) destinationOf(l *lane) *destination {
	if l.worker.destination == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		name := b.destinationName(l.name)
		if b.destinations[name] == nil {
			b.destinations[name] = &destination{}
		}
		l.worker.destination = b.destinations[name]
	}
	return l.worker.destination
}

// recordAcceptance records that the destination of l accepted a batch. Only the worker that holds the lane may call it.
func (b *breaker) recordAcceptance(l *lane, batch []sinks.Message) {
	d, size := b.destinationOf(l), 0
	for i := range batch {
		size = max(size, batch[i].Change.Size())
	}
	d.raiseLargest(int64(size))
	d.rejections.Store(0)
	b.rejections.Store(0)
	b.acceptances.Add(1)
	l.worker.unavailableSince = 0
}

func (d *destination) raiseLargest(size int64) {
	for {
		largest := d.largest.Load()
		if size <= largest || d.largest.CompareAndSwap(largest, size) {
			return
		}
	}
}

// laneUnavailableError is an UnavailableError that only one lane gets: it fails that lane instead of closing the gate.
type laneUnavailableError struct {
	reason string
	after  time.Duration // wait at least so long
}

func (e *laneUnavailableError) Error() string { return e.reason }

// judgeUnavailable turns err, an UnavailableError, into a failure of l alone if Publish calls of other lanes were accepted
// since l got this answer first: a receiver that answers 503 for one object must not stop all others again and again. Only
// the worker that holds the lane may call it.
func (b *breaker) judgeUnavailable(l *lane, err error) error {
	now := b.acceptances.Load() + 1 // never 0, which means that the last answer was another one
	if l.worker.unavailableSince == 0 {
		l.worker.unavailableSince = now
	}
	var unavailable *sinks.UnavailableError
	if l.worker.unavailableSince == now || !errors.As(err, &unavailable) {
		return err
	}
	return &laneUnavailableError{reason: unavailable.Reason, after: unavailable.After}
}

// judgeRejection returns err if the rejection of a change, the oldest of l, is believed. If too many changes were rejected
// in a row, it returns another error, after which the same change is tried again. A change that is larger than any that was
// accepted is believed to be too large. Only the worker that holds the lane may call it.
func (b *breaker) judgeRejection(l *lane, change sinks.Message, err error) error {
	if l.worker.toleratedOffset == change.Offset { // believed before: it waits to become a dead letter
		return err
	}
	d := b.destinationOf(l)
	if largest := d.largest.Load(); largest > 0 && isTooLarge(err) && int64(change.Change.Size()) > largest {
		l.worker.toleratedOffset = change.Offset
		return err
	}
	inRow := d.rejections.Add(1)
	if b.rejections.Add(1) > maxToleratedRejections {
		return &sinks.UnavailableError{
			Reason: "every change is rejected and none accepted: check that this is the right destination; last rejection: " +
				err.Error(),
		}
	}
	if inRow > maxToleratedRejections {
		return errors.New("every change is rejected here and none accepted; last rejection: " + err.Error())
	}
	l.worker.toleratedOffset = change.Offset
	return err
}
