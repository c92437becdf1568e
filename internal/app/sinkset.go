package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// sinkSet holds the sinks of one configuration with their pipelines.
type sinkSet struct {
	*shared
	cfg     *config.Config
	routes  *routing
	runners []*runner               // in the order of the configuration; nil until openSinks for those that create files
	pingers map[string]sinks.Pinger // by sink, of those that have a destination to ask
}

// feed is the source of the changes of every pipeline, and the progress that is known of the sinks.
type feed struct {
	journal *journal.Journal
	replica *replica
	signals *signalControl
	renew   renewal
}

// renewal gives a sink whose destination has lost something a gap, and then what exists.
type renewal func(ctx context.Context, sink, reason string) error

// newSinkSet makes all sinks, except those that create files. It opens no connection.
func newSinkSet(s *shared, cfg *config.Config) (*sinkSet, error) {
	set := &sinkSet{shared: s, cfg: cfg, runners: make([]*runner, len(cfg.Sinks)), pingers: map[string]sinks.Pinger{}}
	var err error
	if set.routes, err = newRouting(cfg); err != nil {
		return nil, err
	}
	setRoutedTopics(cfg)
	for i, sink := range cfg.Sinks {
		if sink.Stdout != nil {
			continue
		}
		if set.runners[i], err = set.newRunner(sink); err != nil {
			return nil, errors.Join(err, set.close())
		}
		if pinger, ok := set.runners[i].sink.(sinks.Pinger); ok {
			set.pingers[sink.Name] = pinger
		}
	}
	return set, nil
}

// newRunner makes a sink and the publisher of its dead letters. It opens no connection and does not use the journal.
func (set *sinkSet) newRunner(s config.Sink) (*runner, error) {
	deadLetters, err := openDeadLetterPublisher(set.cfg, s, set.log)
	if err != nil {
		return nil, err
	}
	log := set.log.With("sink", s.Name)
	sink, err := newSink(s, log)
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", s.Name, err)
	}
	return &runner{
		configuredSink: sink, deadLetters: deadLetters, log: log,
		unread: condition.New(log, "sink/"+s.Name, condition.Problem{}), lost: condition.New(log, "sink/"+s.Name, condition.Problem{}),
		orphaned: condition.New(log, "sink/"+s.Name, condition.Problem{}),
	}, nil
}

// openSinks makes the sinks that are still missing, and a pipeline for each.
func (set *sinkSet) openSinks(from feed) (err error) {
	for i, s := range set.cfg.Sinks {
		if set.runners[i] == nil {
			if set.runners[i], err = set.newRunner(s); err != nil {
				return err
			}
		}
		if err := set.attachPipeline(set.runners[i], s, from); err != nil {
			return err
		}
	}
	return nil
}

// attachPipeline makes the pipeline of a runner. It begins at the sink's cursor in the journal.
func (set *sinkSet) attachPipeline(r *runner, s config.Sink, from feed) error {
	start, _, err := from.journal.Cursor(s.Name)
	if err != nil {
		return fmt.Errorf("sink %s: stored cursor: %w", s.Name, err)
	}
	cfg := set.pipelineConfig(s, r.configuredSink, r.deadLetters, from)
	if cfg.FormerName, err = from.journal.FormerName(s.Name); err != nil {
		return fmt.Errorf("sink %s: former name: %w", s.Name, err)
	}
	cfg.ObservePublish = func(took time.Duration) { set.admin.ObservePublish(s.Name, took) }
	r.watermarks = &watermarkAges{}
	r.pause = from.signals.pauseSwitch(signals.Subject{Sink: s.Name})
	cfg.Pause = r.pause
	r.paused = func() condition.Status { return from.signals.pausedStatus(signals.Subject{Sink: s.Name}) }
	cfg.OnAcknowledged = func(change *event.Change) {
		r.watermarks.observe(change)
		set.admin.ObserveDelivery(s.Name, time.Since(change.ObservedAt))
	}
	layout := r.layout + set.routes.id
	r.journal = sinkJournal{from.journal, s.Name}
	r.renew = from.renew
	r.newPipeline = func(start event.Cursor) *delivery.Pipeline {
		return delivery.New(s.Name, r.sink, layout, r.journal, start, cfg, set.log)
	}
	r.pipeline = r.newPipeline(start)
	r.recoverLanes = func(ctx context.Context, ready func()) error {
		return from.replica.recoverSink(ctx, s.Name, r.sink, r.unread, ready)
	}
	r.recordLoss = func(ctx context.Context) error { return from.replica.recordLoss(ctx, s.Name) }
	return nil
}

// pipelineConfig combines the settings of all pipelines with the requirements of a sink.
func (set *sinkSet) pipelineConfig(
	s config.Sink, sink *configuredSink, deadLetters *deadLetterPublisher, from feed,
) delivery.Config {
	d := set.cfg.Delivery
	cfg := delivery.Config{
		Retry:              delivery.RetryConfig{Min: d.Retry.Min, Max: d.Retry.Max},
		WindowBytes:        int64(d.Window),
		SuspectAfter:       cmp.Or(d.Rejections.Suspect, -1),
		NewestOffset:       from.journal.Newest(),
		RoutingFingerprint: deliveryFingerprint(s) + set.routes.id,
		Route:              skipUnwanted(s, set.routes.routeFor(s.Name)),
		AlreadyDelivered:   from.replica.deliveredFilter(s.Name),
		DeadLetters:        func(after uint64) ([]uint64, error) { return from.journal.DeadLetterOffsets(s.Name, after) },
	}
	if from.replica != nil {
		cfg.WhyHeld = from.replica.writer.WhyHeld(s.Name)
	}
	if s.OnOversize == config.Reduce {
		cfg.Truncate = shape.TruncateOnce
	}
	cfg.PublishDeadLetter = func(ctx context.Context, change *event.Change, reason string) error {
		if err := from.journal.CheckDeadLetterSpace(); err != nil || deadLetters == nil {
			return err
		}
		return deadLetters.publishDeadLetter(ctx, change, reason)
	}
	if concurrent, ok := sink.sink.(sinks.Concurrent); ok {
		cfg.Workers = concurrent.Concurrency()
	}
	if l, ok := sink.sink.(sinks.Batched); ok {
		cfg.BatchMessages, cfg.BatchBytes = l.BatchLimits()
	}
	return cfg
}

// fencedByName returns all sinks by name, nil for those that cannot be fenced.
func (set *sinkSet) fencedByName() map[string]sinks.Fenced {
	all := map[string]sinks.Fenced{}
	for i, s := range set.cfg.Sinks {
		all[s.Name] = nil
		if r := set.runners[i]; r != nil {
			if fenced, ok := r.sink.(sinks.Fenced); ok {
				all[s.Name] = fenced
			}
		}
	}
	return all
}

// drain lets the pipelines deliver everything up to newest, which is asked for each, until ctx ends. With leaveAway it does
// not wait for sinks that are away, and returns their names.
func (set *sinkSet) drain(ctx context.Context, newest func() uint64, leaveAway bool) (left []string) {
	for _, r := range set.runners {
		r.drainUpTo(newest())
	}
	for _, r := range set.runners {
		if !r.awaitDrained(ctx, leaveAway) {
			left = append(left, r.name)
		}
	}
	return left
}

// stopAll stops the pipelines, concurrently, because each waits a moment for what it has in flight.
func (set *sinkSet) stopAll() {
	var stopping sync.WaitGroup
	for _, r := range set.runners {
		stopping.Go(r.stopDelivery)
	}
	stopping.Wait()
}

// stopWarningDelay is the duration of a stop after which the sinks that it waits for are logged.
const stopWarningDelay = time.Second

// logBlocking logs the sinks that have not delivered everything up to newest.
func (set *sinkSet) logBlocking(newest uint64) {
	for _, r := range set.runners {
		if s := r.currentPipeline().Stats(); s.Low < newest {
			r.log.Warn("stopping: waiting for this sink; a second signal stops at once, without loss", "changes", newest-s.Low,
				"atMost", set.cfg.Delivery.DrainTimeout, "reason", cmp.Or(firstCause(s.Conditions()), "slow to respond"))
		}
	}
}

func (set *sinkSet) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	errs := make([]error, len(set.runners))
	var closing sync.WaitGroup // concurrent, so that a slow destination does not use up the time of others
	for i, r := range set.runners {
		if r != nil {
			closing.Go(func() { errs[i] = r.closeSinks(ctx) })
		}
	}
	closing.Wait()
	return errors.Join(errs...)
}
