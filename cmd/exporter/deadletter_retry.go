package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func deadletterRetryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry (OFFSET... | --all) --sink NAME --config FILE",
		Short: "Deliver dead letters of a sink once more, where no newer change stands against it",
		Long: `Deliver dead letters of a sink of a stopped exporter once more: those at the offsets
named, or all of them. What the destination takes is no dead letter any more.

Only the last that was observed of an object is sent. One that a newer change of the
object has followed stays: an older change must not follow a newer one. So does one
whose body could not be redacted, and a control record. Discard those.

Exit code 1 says that some of them are dead letters still; each is named with the
reason. The journal must be writable. While an exporter runs on it this ends with
exit code 3.`,
		Args: cobra.ArbitraryArgs,
	}
	path, sink := configFlag(cmd), sinkFlag(cmd)
	all := cmd.Flags().Bool("all", false, "retry all dead letters of the sink")
	timeout := cmd.Flags().Duration("timeout", time.Minute, "how long to try to reach the destination")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offsets, err := parseOffsets(args, *all)
		if err != nil {
			return err
		}
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return retryDeadLetters(ctx, cfg, *sink, offsets, cmd.OutOrStdout())
	}
	return cmd
}

// parseOffsets reads which dead letters are meant; nil means all.
func parseOffsets(args []string, all bool) ([]uint64, error) {
	if all == (len(args) > 0) {
		return nil, &usageError{"say which dead letters are meant: their offsets, or --all"}
	}
	var offsets []uint64
	for _, arg := range args {
		offset, err := parseOffset(arg)
		if err != nil {
			return nil, err
		}
		offsets = append(offsets, offset)
	}
	return offsets, nil
}

// retryDeadLetters sends dead letters, drops those that were accepted from the journal, and says what became of each.
func retryDeadLetters(ctx context.Context, cfg *config.Config, name string, offsets []uint64, out io.Writer) error {
	nameTopics(cfg)
	routes, err := newRouting(cfg)
	if err != nil {
		return err
	}
	o, err := sinkNamed(cfg, name)
	if err != nil {
		return err
	}
	var delivered []uint64
	kept := 0
	err = withJournal(cfg.Journal.Dir, out, func(j *journal.Offline, w io.Writer) error {
		retry := retrying{sink: o.sink, route: routes.of(name), journal: j, backoff: ratelimit.NewBackoff[uint64](cfg.Delivery.Retry.Min, cfg.Delivery.Retry.Max, rand.Float64)}
		return eachDeadLetter(j, name, offsets, func(d journal.DeadLetter) error {
			if err := retry.send(ctx, d); err != nil {
				kept++
				_, err = fmt.Fprintf(w, "%d kept: %v\n", d.Offset, err)
				return err
			}
			delivered = append(delivered, d.Offset)
			_, err := fmt.Fprintf(w, "%d delivered\n", d.Offset)
			return err
		})
	})
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err = errors.Join(err, o.sink.Close(closing))
	if len(delivered) > 0 { // also after an error: what is delivered is none any more
		if _, dropErr := journal.DiscardDeadLetters(cfg.Journal.Dir, name, delivered); dropErr != nil {
			err = errors.Join(err, fmt.Errorf("delivered, and yet still in the journal: discard %v: %w", delivered, dropErr))
		}
	}
	if err == nil && kept > 0 {
		err = &runtimeError{fmt.Errorf("%d of %d are dead letters still", kept, kept+len(delivered))}
	}
	return err
}

// sinkNamed makes the configured sink of that name, ready to publish what no process before it has told of.
func sinkNamed(cfg *config.Config, name string) (*outlet, error) {
	s, err := configured(cfg, name)
	if err != nil {
		return nil, err
	}
	o, _, err := newSink(s, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", name, err)
	}
	return o, begin(o.sink)
}

// eachDeadLetter calls each for the dead letters at some offsets, or with nil for all, in order of offsets.
func eachDeadLetter(j *journal.Offline, sink string, offsets []uint64, each func(journal.DeadLetter) error) error {
	if offsets == nil {
		return j.DeadLetters(sink, each)
	}
	for _, offset := range offsets {
		d, ok, err := j.DeadLetter(sink, offset)
		if err != nil {
			return err
		}
		if !ok {
			return &usageError{fmt.Sprintf("sink %q has no dead letter at offset %d", sink, offset)}
		}
		if err := each(d); err != nil {
			return err
		}
	}
	return nil
}

// retrying sends dead letters of one sink.
type retrying struct {
	sink    sinks.Sink
	route   func(*event.Change) delivery.Route // nil: to the sink's own topic
	journal *journal.Offline
	backoff *ratelimit.Backoff[uint64]
}

// send publishes a dead letter until the destination has answered. An error says why it stays one.
func (r retrying) send(ctx context.Context, d journal.DeadLetter) error {
	if d.Change.Withheld != "" {
		return errors.New("its body could not be redacted and was not kept")
	}
	last, err := r.journal.LastWord(d.Change)
	if err != nil {
		return err
	}
	if !last {
		return errors.New("a newer change of the object was observed, or it is a control record; it would be a step back")
	}
	m := sinks.Message{Offset: d.Offset, Change: d.Change}
	if r.route != nil {
		to := r.route(d.Change)
		if to.Pass {
			return errors.New("no route leads to this sink any more")
		}
		m.Topic = to.Topic
	}
	for {
		err := publishSmaller(ctx, r.sink, m)
		var rejected *sinks.RejectedError
		if err == nil || errors.As(err, &rejected) {
			return err
		}
		select {
		case <-time.After(r.backoff.When(d.Offset)):
		case <-ctx.Done():
			return err
		}
	}
}

// publishSmaller publishes one message, in a smaller form for as long as it is too large and there is one.
func publishSmaller(ctx context.Context, s sinks.Sink, m sinks.Message) error {
	for {
		err := publishAlone(ctx, s, m)
		var rejected *sinks.RejectedError
		if !errors.As(err, &rejected) || !rejected.TooLarge {
			return err
		}
		smaller, ok := shape.Smaller(m.Change)
		if !ok {
			return err
		}
		m.Change = smaller
	}
}

// publishAlone publishes one message.
func publishAlone(ctx context.Context, s sinks.Sink, m sinks.Message) error {
	laneOf := s.Lane
	if router, ok := s.(sinks.Router); ok {
		laneOf = func(ctx context.Context, c *event.Change) (sinks.Lane, error) { return router.LaneTo(ctx, c, m.Topic) }
	}
	lane, err := laneOf(ctx, m.Change)
	if err != nil {
		return err
	}
	_, err = s.Publish(ctx, lane, []sinks.Message{m})
	return err
}
