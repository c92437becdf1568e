package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/verify"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
)

const (
	// orphanInterval is how often passes are looked for that are due.
	orphanInterval = time.Second
	// orphanRetry is the time behind an attempt that failed.
	orphanRetry = 5 * time.Second
	// orphansPerWrite bounds the rows that one write of the journal compares with the known objects.
	orphansPerWrite = 128
)

// OpenStoredReader returns a reader of what a sink of Kafka or NATS stores. It opens no connection. The caller closes it.
func OpenStoredReader(s config.Sink) (sinks.StoredReader, error) {
	if s.Kafka != nil {
		return kafka.OpenStoredReader(*s.Kafka)
	}
	return nats.OpenStoredReader(*s.NATS)
}

// removesOrphans reports whether rows of a sink that a snapshot lacks get deletes.
func removesOrphans(s config.Sink) bool {
	return s.Kafka != nil && s.Kafka.Repair || s.NATS != nil && s.NATS.Repair
}

// orphanRemover reads the destination of one sink behind snapshots, and has the journal append the deletes that are missing
// there, for that sink alone. The journal has what is due: a pass that is interrupted begins again, and finds less to do.
// One goroutine uses it.
type orphanRemover struct {
	sink    config.Sink
	route   func(*event.Change) delivery.Route
	journal *journal.Journal
	log     *slog.Logger
	failing *condition.Condition
}

// run makes the passes that are due, until ctx ends.
func (o *orphanRemover) run(ctx context.Context) error {
	for pause := orphanInterval; ratelimit.Sleep(ctx, pause) == nil; {
		due, err := o.duePasses()
		if err == nil && len(due) > 0 {
			err = o.removeOrphans(ctx, due)
		}
		switch pause = orphanInterval; {
		case ctx.Err() != nil:
		case err == nil:
			o.failing.Update(condition.Problem{})
		case !errors.Is(err, journal.ErrOutrun): // or it is read again at once
			pause = orphanRetry
			o.failing.Update(condition.Problem{Code: condition.SinkMayLose, Cause: fmt.Sprintf("rows of deleted objects remain: %v", err)})
		}
	}
	return nil
}

// duePasses returns the passes behind snapshots that the sink has received, by topic.
func (o *orphanRemover) duePasses() (due map[string][]journal.OrphanPass, err error) {
	passes := o.journal.OrphanPasses(o.sink.Name)
	if len(passes) == 0 {
		return nil, nil
	}
	cursor, _, err := o.journal.Cursor(o.sink.Name)
	if err != nil {
		return nil, err
	}
	due = map[string][]journal.OrphanPass{}
	for _, p := range passes {
		if p.Offset > cursor.Low {
			continue
		}
		topic, err := o.topicOf(p)
		if err != nil {
			return nil, err
		}
		due[topic] = append(due[topic], p)
	}
	return due, nil
}

// notDelivered stands for the topic of a resource that the sink does not get.
const notDelivered = "\x00"

// topicOf returns the topic of a pass: that of the records at the borders of its snapshot.
func (o *orphanRemover) topicOf(p journal.OrphanPass) (string, error) {
	end := &event.Change{Type: event.SnapshotEnd, Cluster: p.Cluster, Resource: p.Resource, Namespace: p.Namespace,
		Snapshot: &event.SnapshotInfo{ID: p.Snapshot, Position: p.Position}}
	var template *sinks.Template
	if o.route != nil {
		to := o.route(end)
		if to.Skip {
			return notDelivered, nil
		}
		template = to.Topic
	}
	if o.sink.Kafka == nil {
		return "", nil
	}
	if template == nil {
		var err error
		if template, err = sinks.ParseTemplate(o.sink.Kafka.Topic); err != nil {
			return "", err
		}
	}
	return kafka.TopicName(template, end)
}

// removeOrphans makes passes. It returns the first error; the passes of other topics are made.
func (o *orphanRemover) removeOrphans(ctx context.Context, due map[string][]journal.OrphanPass) (first error) {
	reader, err := OpenStoredReader(o.sink)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = reader.Close(closing) // it only read
	}()
	for topic, passes := range due {
		removed := 0
		if topic != notDelivered {
			removed, err = o.removeFrom(ctx, reader, topic, passes)
			if err != nil && condition.ProblemOf(err, "").Code != condition.SinkTargetMissing { // or it has no rows yet
				first = errors.Join(first, err)
				continue
			}
		}
		for _, p := range passes {
			if err := o.journal.RemoveOrphanPass(ctx, p); err != nil {
				return err
			}
		}
		o.log.Info("the destination was read behind snapshots; rows that they lack get deletes", "topic", topic, "snapshots", len(passes), "rows", removed)
	}
	return first
}

// removeFrom makes the passes of one topic in one reading. What the journal held when that began has to be delivered: the
// destination then shows it, and what comes later is known to the journal.
func (o *orphanRemover) removeFrom(ctx context.Context, reader sinks.StoredReader, topic string, passes []journal.OrphanPass) (removed int, err error) {
	reading, newest, err := o.journal.BeginOrphanReading(ctx, o.sink.Name)
	if err != nil {
		return 0, err
	}
	defer o.journal.EndOrphanReading(context.WithoutCancel(ctx), reading)
	if err := awaitCursor(ctx, o.journal, o.sink.Name, func(c event.Cursor) bool { return c.Low >= newest }); err != nil {
		return 0, err
	}
	find := &verify.Orphans{Reader: reader, Target: topic, Cluster: passes[0].Cluster}
	for _, p := range passes {
		find.Snapshots = append(find.Snapshots, verify.EndedSnapshot{Resource: p.Resource, Namespace: p.Namespace, ID: p.Snapshot, Position: p.Position})
	}
	err = find.Find(ctx, func(snapshot int, rows []*event.Change) error {
		for some := range slices.Chunk(rows, orphansPerWrite) {
			if err := awaitLead(ctx, o.journal, o.sink.Name); err != nil {
				return err
			}
			n, err := o.journal.RemoveOrphans(ctx, reading, passes[snapshot], some)
			if removed += n; err != nil {
				return err
			}
		}
		return nil
	})
	return removed, err
}
