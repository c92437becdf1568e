package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/follow"
)

const (
	pollInterval = 500 * time.Millisecond
	closeTimeout = 5 * time.Second
)

// Options are the dependencies of a topic. All are required.
type Options struct {
	Cluster cluster.Options
	Topic   string
	Handler signals.Handler
	Book    *signals.Registry // that Handler stores signals in
	// Report is called with the reason why no signals arrive, and with nil when they do. It is called again while nothing
	// changes.
	Report func(error)
	Logger *slog.Logger
}

// Topic takes signals from all partitions of a topic, each from its stored position.
type Topic struct {
	Options
	cluster    *cluster.Cluster // nil: not connected yet
	partitions []*partition
}

// New returns a reader of a topic. It opens no connection.
func New(o Options) *Topic { return &Topic{Options: o} }

// Run takes signals until ctx ends, and returns nil.
func (t *Topic) Run(ctx context.Context) error {
	t.dropPositions(func(place string) bool { return signals.IsPlace(place, t.Topic) })
	for ctx.Err() == nil {
		err := t.readAvailable(ctx)
		if ctx.Err() != nil {
			break
		}
		t.Report(err)
		_ = ratelimit.Sleep(ctx, pollInterval)
	}
	if t.cluster != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = t.cluster.Close(closing) // reads only: nothing can be lost
	}
	return nil
}

// DropPositions removes all positions, where no topic is configured: what is written until one is configured again is not
// taken.
func DropPositions(book *signals.Registry) {
	(&Topic{Options: Options{Book: book}}).dropPositions(func(string) bool { return false })
}

// dropPositions removes the positions of places that are not kept.
func (t *Topic) dropPositions(keep func(place string) bool) {
	var gone []string
	for _, place := range t.Book.Places() {
		if !keep(place) {
			gone = append(gone, place)
		}
	}
	if len(gone) == 0 {
		return
	}
	t.Book.Update(func(b *signals.Book) {
		for _, place := range gone {
			delete(b.Positions, place)
		}
	})
}

// readAvailable reads all partitions to their ends, and returns one of the errors.
func (t *Topic) readAvailable(ctx context.Context) error {
	if err := t.connect(); err != nil {
		return err
	}
	layout, _, err := t.cluster.DescribeTopic(ctx, t.Topic)
	if err != nil {
		return t.cluster.ReadError(ctx, t.Topic, err)
	}
	if err := t.followPartitions(ctx, len(layout.Leads)); err != nil {
		return err
	}
	for _, p := range t.partitions {
		lead, failed := layout.Lead(p.id)
		if failed == nil {
			failed = p.readAvailable(ctx, lead)
		}
		var untaken *untakenError
		if failed != nil && !errors.As(failed, &untaken) {
			failed = fmt.Errorf("%s: %w", follow.Name(p.id), t.cluster.ReadError(ctx, t.Topic, failed))
		}
		err = cmp.Or(err, failed)
	}
	return err
}

// connect creates the client, with the current certificates and passwords.
func (t *Topic) connect() (err error) {
	if t.cluster == nil {
		t.cluster, err = cluster.New(t.Options.Cluster, t.Logger)
	}
	return err
}

// followPartitions makes the topic follow so many partitions. Only a topic that is recreated has fewer than before.
func (t *Topic) followPartitions(ctx context.Context, n int) error {
	if len(t.partitions) == n {
		return nil
	}
	if err := t.storeFirstPositions(ctx, n); err != nil {
		return err
	}
	for id := len(t.partitions); id < n; id++ {
		t.partitions = append(t.partitions, newPartition(t, int32(id)))
	}
	t.partitions = t.partitions[:n]
	t.dropPositions(func(place string) bool {
		return slices.ContainsFunc(t.partitions, func(p *partition) bool { return p.place == place })
	})
	return nil
}

// storeFirstPositions stores the ends of all partitions of a topic that is read for the first time, in one write: what is in
// it was written for another exporter, or at another time.
func (t *Topic) storeFirstPositions(ctx context.Context, n int) error {
	if len(t.Book.Places()) > 0 {
		return nil
	}
	spans := make([]*cluster.Span, n)
	for id := range spans {
		spans[id] = &cluster.Span{Partition: cluster.Partition{Topic: t.Topic, Index: int32(id)}}
	}
	err := cluster.NewReader(t.cluster).QueryEnds(ctx, spans)
	for _, s := range spans {
		err = cmp.Or(err, s.Err)
	}
	if err != nil {
		return t.cluster.ReadError(ctx, t.Topic, err)
	}
	return t.Book.Commit(ctx, "", func(b *signals.Book) {
		for id, s := range spans {
			b.SetPosition(signals.Place(t.Topic, int32(id)), follow.At(s.End).String())
		}
	})
}
