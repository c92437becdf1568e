package away

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Options configure what to measure. Numbers of changes take the place of times, so that a slow machine measures the same.
type Options struct {
	Dir    string // for the server's store and the journal
	Kafka  bool   // a Kafka broker in place of a NATS server
	Rate   int    // changes a second; 0: as fast as the journal takes them
	Before int    // changes before the outage
	During int    // changes during the outage
	After  int    // changes after it, at least; more if it takes longer to catch up
}

// Report is what was measured.
type Report struct {
	Fed                            int              // changes
	Backlog                        uint64           // when the server came back
	Memory                         [3]Memory        // largest: before the outage, in its first and in its last third
	Other                          [2]time.Duration // of the sink that stays well, how late at most: before, since
	OtherDone                      bool             // it had everything before the server came back
	Recovery                       time.Duration    // from the server's return to the first acknowledgement
	CatchUp                        time.Duration    // from there until nothing was left but what had just come
	Delivered                      uint64           // meanwhile
	Missing, Duplicates, StepsBack int              // in the stream
}

// Memory is in bytes.
type Memory struct {
	InUse uint64 // has the process of the system, garbage included
	Live  uint64 // was found alive by the last collection of garbage
}

// Rate is how many changes a second were delivered while catching up.
func (r Report) Rate() float64 { return float64(r.Delivered) / r.CatchUp.Seconds() }

const (
	objects = 1024
	bodies  = 1000 // bytes
	poll    = 5 * time.Millisecond
)

// run is one measurement under way.
type run struct {
	Options
	server  destination
	journal *journal.Journal
	away    *delivery.Pipeline
	other   *delivery.Pipeline
	well    *counter
	report  Report
	body    []byte
}

// Run measures.
func Run(ctx context.Context, o Options) (_ Report, err error) {
	r := &run{Options: o, well: &counter{}, body: body()}
	if r.server, err = begin(ctx, o); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, r.server.Kill()) }()
	if r.journal, err = journal.Open(journal.Options{Dir: filepath.Join(o.Dir, "journal"), Sinks: []string{"away", "well"}, Logger: quiet}); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, r.journal.Close()) }()
	sink, workers, err := r.server.sink()
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, sink.Close(context.WithoutCancel(ctx))) }()
	r.away = delivery.New("away", sink, "away", view{r.journal, "away"}, event.Cursor{}, delivery.Config{Workers: workers}, quiet)
	r.other = delivery.New("well", r.well, "counter", view{r.journal, "well"}, event.Cursor{}, delivery.Config{}, quiet)
	if err := r.live(ctx); err != nil {
		return r.report, err
	}
	return r.report, r.judge(ctx)
}

// live runs the parts while the outage comes and goes, and lets them drain.
func (r *run) live(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	committing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var parts, store sync.WaitGroup
	start := func(group *sync.WaitGroup, ctx context.Context, part func(context.Context) error) {
		group.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				end(err)
			}
		})
	}
	start(&store, committing, r.journal.Run)
	start(&parts, ctx, r.away.Run)
	start(&parts, ctx, r.other.Run)
	err := r.outage(ctx)
	if err == nil {
		err = r.journal.Flush(ctx)
	}
	if err != nil {
		end(err)
	}
	r.away.Drain(r.journal.Newest())
	r.other.Drain(r.journal.Newest())
	parts.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	stop()
	store.Wait()
	return err
}

// outage feeds changes, kills the server, and brings it back.
func (r *run) outage(ctx context.Context) error {
	if err := r.feed(ctx, r.Before, &r.report.Memory[0]); err != nil {
		return err
	}
	if err := r.await(ctx, func() bool { return r.settled(r.away) && r.settled(r.other) }); err != nil {
		return err
	}
	r.report.Other[0] = r.well.latest()
	if err := r.server.Kill(); err != nil {
		return err
	}
	var middle Memory
	for _, memory := range []*Memory{&r.report.Memory[1], &middle, &r.report.Memory[2]} {
		if err := r.feed(ctx, r.During/3, memory); err != nil {
			return err
		}
	}
	if err := r.await(ctx, func() bool { return r.settled(r.other) }); err != nil {
		return err
	}
	r.report.OtherDone = true
	return r.recover(ctx)
}

// recover brings the server back and waits until the pipeline has caught up, while changes go on.
func (r *run) recover(ctx context.Context) error {
	r.report.Backlog = r.journal.Newest() - r.away.Stats().Low
	if err := r.server.Restart(ctx); err != nil {
		return err
	}
	back, before := time.Now(), r.away.Stats().Delivered
	feeding, caughtUp := context.WithCancel(ctx)
	fed := make(chan error, 1)
	go func() { fed <- r.feedOn(feeding) }()
	err := r.await(ctx, func() bool { return r.away.Stats().Delivered > before })
	first := time.Now()
	if acked := r.away.Stats().LastAck; acked.After(back) && acked.Before(first) {
		first = acked
	}
	if err == nil {
		err = r.await(ctx, func() bool { return r.journal.Newest()-r.away.Stats().Low <= uint64(max(r.Rate, objects)) })
	}
	r.report.Recovery, r.report.CatchUp = first.Sub(back), time.Since(first)
	r.report.Delivered = r.away.Stats().Delivered - before
	caughtUp()
	err = errors.Join(err, <-fed)
	r.report.Other[1] = r.well.latest()
	return err
}

// feedOn feeds what is to come after the outage, and at a rate goes on until ctx ends.
func (r *run) feedOn(ctx context.Context) error {
	var memory Memory
	err := r.feed(context.WithoutCancel(ctx), r.After, &memory)
	for err == nil && r.Rate > 0 && ctx.Err() == nil {
		err = r.feed(context.WithoutCancel(ctx), max(r.Rate/10, 1), &memory)
	}
	return err
}

// feed appends changes at the rate, and notes how much memory is in use at most.
func (r *run) feed(ctx context.Context, changes int, memory *Memory) error {
	begun := time.Now()
	look := 0
	for i := range changes {
		if r.Rate > 0 {
			time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Second / time.Duration(r.Rate))))
		}
		if i == look {
			memory.look()
			look += max(changes/50, 1)
		}
		n := r.report.Fed
		c := &event.Change{
			Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "away", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "shop", Name: fmt.Sprint("web-", n%objects), UID: fmt.Sprint("u", n%objects), ResourceVersion: fmt.Sprint(n),
			ObservedAt: time.Now(), After: r.body,
		}
		known := event.Known{Key: c.Namespace + "/" + c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
		if err := r.journal.Append(ctx, event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Known: []event.Known{known}, Position: c.ResourceVersion}); err != nil {
			return err
		}
		r.report.Fed++
	}
	return nil
}

// settled reports whether a pipeline has delivered all changes.
func (r *run) settled(p *delivery.Pipeline) bool { return p.Stats().Low >= uint64(r.report.Fed) }

// await looks until a condition holds.
func (r *run) await(ctx context.Context, holds func() bool) error {
	look := time.NewTicker(poll)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// body makes the body of all objects.
func body() []byte {
	b := []byte(`{"kind":"Pod","data":"`)
	for i := range bodies {
		b = append(b, "0123456789abcdefghijklmnopqrstuv"[(i*i*7+i/3)%32])
	}
	return append(b, `"}`...)
}

// look takes note of what there is now, where it is more.
func (m *Memory) look() {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	m.InUse = max(m.InUse, samples[0].Value.Uint64()-samples[1].Value.Uint64())
	m.Live = max(m.Live, samples[2].Value.Uint64())
}

// view is the journal as one pipeline sees it.
type view struct {
	*journal.Journal
	sink string
}

func (v view) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	if len(dead) > 0 {
		return fmt.Errorf("sink %s refused change %d: %s", v.sink, dead[0].Offset, dead[0].Reason)
	}
	return v.Journal.Settle(ctx, v.sink, c, nil)
}

// counter is a sink that takes everything, and knows how late what it took was.
type counter struct {
	mu   sync.Mutex
	late time.Duration
}

func (c *counter) Lane(e *event.Change) (sinks.Lane, error) {
	return sinks.Lane(e.UID[len(e.UID)-1:]), nil
}

func (c *counter) Publish(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range batch {
		c.late = max(c.late, time.Since(m.Change.ObservedAt))
	}
	return len(batch), nil
}

func (c *counter) Close(context.Context) error { return nil }

// latest returns how late a change was at most since it was asked last.
func (c *counter) latest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	late := c.late
	c.late = 0
	return late
}
