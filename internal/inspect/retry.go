package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// RetryDeadLetters sends the dead letters of a sink at some offsets, or with nil all of them, drops accepted ones from the
// journal, and writes the result of each. It tries to reach the destination until ctx ends. Remaining dead letters are an
// error. No exporter may run on the journal.
func RetryDeadLetters(ctx context.Context, cfg *config.Config, sink string, offsets []uint64, out io.Writer) error {
	destination, err := app.OpenDestination(cfg, sink)
	if err != nil {
		return err
	}
	var delivered []uint64
	kept := 0
	backoff := ratelimit.NewBackoff[uint64](cfg.Delivery.Retry.Min, cfg.Delivery.Retry.Max, rand.Float64)
	err = withJournal(cfg.Journal.Dir, out, func(j *journal.Offline, w io.Writer) error {
		r := deadLetterSender{destination, j, backoff}
		return forEachDeadLetter(j, sink, offsets, func(d event.DeadLetter) error {
			if err := r.sendDeadLetter(ctx, d); err != nil {
				kept++
				_, err = fmt.Fprintf(w, "%d kept: %v\n", d.Offset, err)
				return err
			}
			delivered = append(delivered, d.Offset)
			_, err := fmt.Fprintf(w, "%d delivered\n", d.Offset)
			return err
		})
	})
	err = errors.Join(err, destination.Close(ctx))
	if len(delivered) > 0 { // also after an error, because delivered changes are no dead letters any more
		if _, dropErr := journal.DiscardDeadLetters(cfg.Journal.Dir, sink, delivered); dropErr != nil {
			err = errors.Join(err, fmt.Errorf("delivered, but still in the journal: discard %v: %w", delivered, dropErr))
		}
	}
	if err == nil && kept > 0 {
		err = exit.With(exit.Runtime, fmt.Errorf("%d of %d are still dead letters", kept, kept+len(delivered)))
	}
	return err
}

// forEachDeadLetter calls each for the dead letters at some offsets, in the given order, or with nil for all.
func forEachDeadLetter(j *journal.Offline, sink string, offsets []uint64, each func(event.DeadLetter) error) error {
	if offsets == nil {
		return j.ForEachDeadLetter(sink, each)
	}
	for _, offset := range offsets {
		d, ok, err := j.DeadLetter(sink, offset)
		if err != nil {
			return err
		}
		if !ok {
			return usageErrorf("sink %q has no dead letter at offset %d", sink, offset)
		}
		if err := each(d); err != nil {
			return err
		}
	}
	return nil
}

// deadLetterSender sends dead letters of one sink.
type deadLetterSender struct {
	destination *app.Destination
	journal     *journal.Offline
	backoff     *ratelimit.Backoff[uint64]
}

// sendDeadLetter publishes a dead letter and retries until the destination accepts or rejects it. An error is the reason why
// it stays a dead letter.
func (r deadLetterSender) sendDeadLetter(ctx context.Context, d event.DeadLetter) error {
	if d.Change.Withheld != "" {
		return errors.New(journal.ReasonWithheld)
	}
	last, err := r.journal.IsLatest(d.Change)
	if err != nil {
		return err
	}
	if !last {
		return errors.New(journal.ReasonNewer)
	}
	for {
		err := r.destination.Publish(ctx, d.Offset, d.Change)
		var rejected *sinks.RejectedError
		if err == nil || errors.As(err, &rejected) || errors.Is(err, app.ErrNotRouted) {
			return err
		}
		select {
		case <-time.After(r.backoff.When(d.Offset)):
		case <-ctx.Done():
			return err
		}
	}
}
