package lives

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// process is an exporter with one sink: it does what internal/app does with the parts of the product, and reads the history
// of the world in place of an API server.
type process struct {
	*world
	disk    *vfs.MemFS
	log     *slog.Logger
	journal *journal.Journal
	sink    sinks.Sink
	writer  *state.Writer // nil without a replicated state

	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error // once ended is closed

	acked    atomic.Int64
	appended atomic.Int64 // the newest version in the journal
	pipeline atomic.Pointer[delivery.Pipeline]
	endRun   atomic.Pointer[context.CancelCauseFunc] // of the pipeline

	alive   sync.RWMutex // held while the journal is read or settled
	crashed bool
}

var errStopped = errors.New("the process was stopped")

// start starts a process on a disk.
func (w *world) start(disk *vfs.MemFS) *process {
	w.Helper()
	w.started++
	p := &process{world: w, disk: disk, ended: make(chan struct{}), log: slog.New(slog.NewTextHandler(w.Output(), nil)).With("process", w.started)}
	declared := journal.Declaration{Sinks: []string{sinkName}, ClusterName: "c"}
	if w.replicated {
		declared.Sinks = append(declared.Sinks, state.Sink)
	}
	var err error
	p.journal, err = journal.Open(journal.Options{Dir: "journal", FS: disk, Declaration: declared, KeepSettled: time.Hour, Logger: p.log})
	if err != nil {
		w.Fatal(err)
	}
	closed := func() {}
	if w.replicated {
		var store sinks.StateStore
		store, closed = w.bus.State()
		p.writer, err = state.New(state.Options{Group: "lives", Lease: "lives/lives", ClusterName: "c", Owner: fmt.Sprint("process ", w.started),
			Journal: p.journal, Logger: p.log}, store)
		if err != nil {
			w.Fatal(err)
		}
	}
	p.sink = w.bus.Open(w.observe)
	ctx, cancel := context.WithCancelCause(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.ended)
		p.err = p.run(ctx)
		closed()
	}()
	return p
}

// stop stops the process as SIGTERM does, without a drain.
func (p *process) stop() {
	p.cancel(errStopped)
	<-p.ended
	if errors.Is(p.err, errClose) {
		p.Error(p.err)
	}
}

// crash kills the process and returns what is on its disk then. What it has under way may still arrive.
func (p *process) crash(cfg vfs.CrashCloneCfg) *vfs.MemFS {
	p.alive.Lock()
	defer p.alive.Unlock()
	p.crashed = true
	p.cancel(errStopped)
	return p.disk.CrashClone(cfg)
}

var errClose = errors.New("not closed")

// run runs the process until ctx ends, or it is deposed.
func (p *process) run(ctx context.Context) (err error) {
	journalCtx, stopJournal := context.WithCancel(context.Background())
	var writing, parts sync.WaitGroup
	writing.Go(func() {
		if err := p.journal.Run(journalCtx); err != nil {
			p.cancel(err)
		}
	})
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		cancel(err)
		parts.Wait()
		limited, end := context.WithTimeout(context.Background(), waitTimeout)
		defer end()
		failed := p.sink.Close(limited)
		if p.writer != nil {
			failed = errors.Join(failed, p.writer.Close(limited))
		}
		stopJournal()
		writing.Wait()
		if failed = errors.Join(failed, p.journal.Close()); failed != nil {
			err = fmt.Errorf("%w: %w", errClose, failed)
		}
	}()
	startPart := func(run func(context.Context) error) {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	cfg := delivery.Config{
		Retry: delivery.RetryConfig{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond}, SettleInterval: 20 * time.Millisecond,
		NewestOffset: p.journal.Newest(), RoutingFingerprint: "lives", OnAcknowledged: func(*event.Change) { p.acked.Add(1) },
	}
	if c, ok := p.sink.(sinks.Concurrent); ok {
		cfg.Workers = c.Concurrency()
	}
	if b, ok := p.sink.(sinks.Batched); ok {
		cfg.BatchMessages, cfg.BatchBytes = b.BatchLimits()
	}
	if p.writer != nil {
		if err := p.takeOver(ctx, startPart); err != nil {
			return err
		}
		cfg.NewestOffset, cfg.AlreadyDelivered, cfg.WhyHeld = p.journal.Newest(), p.writer.Delivered(sinkName), p.writer.WhyHeld(sinkName)
	}
	startPart(p.watch)
	return p.deliver(ctx, cfg)
}

// takeOver makes the process the active one, and goes on until all lanes are fenced and read.
func (p *process) takeOver(ctx context.Context, startPart func(func(context.Context) error)) error {
	fenced := p.sink.(sinks.Fenced)
	retry := func(do func() error) error {
		for {
			err := do()
			switch {
			case err == nil, errors.As(err, new(*sinks.DeposedError)), errors.As(err, new(*state.RefusedError)):
				return err
			case ratelimit.Sleep(ctx, 50*time.Millisecond) != nil:
				return context.Cause(ctx)
			}
			p.log.Info("not taken over", "error", err)
		}
	}
	var taken *state.TakeOverResult
	err := retry(func() (err error) {
		taken, err = p.writer.TakeOver(ctx, state.TakeOverOptions{Sinks: map[string]sinks.Fenced{sinkName: fenced}})
		return err
	})
	if err != nil {
		return err
	}
	startPart(p.writer.Run)
	if taken.Waiting[sinkName] != nil {
		if err := retry(func() error { return p.writer.AddSink(ctx, sinkName, fenced) }); err != nil {
			return err
		}
	}
	startPart(func(ctx context.Context) error {
		return retry(func() error {
			n, reason := p.writer.WaitingLanes(sinkName)
			if n == 0 {
				return nil
			}
			if err := p.writer.ReadWaitingLanes(ctx, sinkName, fenced); err != nil {
				return err
			}
			return fmt.Errorf("%d lanes wait: %w", n, reason)
		})
	})
	return nil
}

// watch appends what follows the position in the journal.
func (p *process) watch(ctx context.Context) error {
	stored, err := p.journal.LoadResource(resource.String(), nil)
	if err != nil {
		return err
	}
	at := 0
	for _, scope := range stored.Scopes {
		at, _ = strconv.Atoi(scope.Position)
	}
	for {
		p.appended.Store(int64(at))
		changes, more := p.after(at)
		if len(changes) == 0 {
			select {
			case <-more:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		known := map[string]event.Known{}
		for _, c := range changes {
			known[c.Name] = event.Known{Key: c.Namespace + "/" + c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
			at++
		}
		o := event.Observation{Resource: resource, Scope: resource.String(), Changes: changes, Position: strconv.Itoa(at)}
		for _, k := range known {
			o.Known = append(o.Known, k)
		}
		if err := errors.Join(p.journal.Append(ctx, o), p.journal.Flush(ctx)); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// Read implements [delivery.Journal].
func (p *process) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	records, err := p.journal.Read(ctx, after)
	p.alive.RLock()
	defer p.alive.RUnlock()
	if p.crashed { // the disk of its successor may not have them
		return nil, errStopped
	}
	return records, err
}

// Settle implements [delivery.Journal].
func (p *process) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	p.alive.RLock()
	defer p.alive.RUnlock()
	if p.crashed {
		return errStopped
	}
	if len(dead) > 0 {
		p.cancel(fmt.Errorf("%d dead letters: %s", len(dead), dead[0].Reason))
	}
	return p.journal.Settle(ctx, sinkName, c, dead)
}

// deliver runs pipelines as the runner of internal/app does: after a loss, one that begins before it.
func (p *process) deliver(ctx context.Context, cfg delivery.Config) error {
	start, _, err := p.journal.Cursor(sinkName)
	for err == nil {
		pipeline := delivery.New(sinkName, p.sink, "lives", p, start, cfg, p.log)
		run, end := context.WithCancelCause(ctx)
		p.pipeline.Store(pipeline)
		p.endRun.Store(&end)
		err = pipeline.Run(run)
		end(nil)
		var lost *sinks.LostError
		if !errors.As(err, &lost) || ctx.Err() != nil {
			return err
		}
		start, err = p.rewind(ctx, lost)
	}
	return err
}

// interrupt ends the pipeline with a loss that it has not noticed.
func (p *process) interrupt(lost error) { (*p.endRun.Load())(lost) }

// rewind does what the runner of internal/app does after a loss: it counts what the journal does not keep, and goes back.
func (p *process) rewind(ctx context.Context, lost *sinks.LostError) (event.Cursor, error) {
	cursor, _, err := p.journal.Cursor(sinkName)
	if err != nil {
		return cursor, err
	}
	back, missing := delivery.Rewind(lost, cursor, p.journal.Oldest()-1, p.journal.Newest(), p.sink)
	p.mu.Lock()
	p.missing += missing
	p.mu.Unlock()
	p.log.Info("loss", "from", lost.From, "lanes", lost.Lanes, "messages", lost.Messages, "gone", lost.Gone, "missing", missing, "reason", lost.Reason)
	if err := p.Settle(ctx, back, nil); err != nil || p.writer == nil {
		return back, err
	}
	return back, p.writer.RecordLoss(ctx, sinkName)
}

// keptVersions returns the versions that the journal keeps.
func (p *process) keptVersions() map[int]bool {
	p.Helper()
	kept := map[int]bool{}
	for at := p.journal.Oldest() - 1; at < p.journal.Newest(); {
		records, err := p.journal.Read(p.Context(), at)
		if err != nil {
			p.Fatal(err)
		}
		for _, r := range records {
			kept[versionOf(r.Change.ID())], at = true, r.Offset
		}
	}
	return kept
}

// problems returns a condition that has not ended.
func (p *process) problems() string {
	pipeline := p.pipeline.Load()
	if pipeline == nil {
		return "it does not deliver yet"
	}
	all := pipeline.Stats().Conditions()
	if c, ok := p.sink.(sinks.ConditionReporter); ok {
		all = append(all, c.Conditions()...)
	}
	if p.writer != nil {
		all = append(all, p.writer.Conditions()...)
	}
	for _, c := range all {
		if c.Severity >= condition.NotReady {
			return fmt.Sprintf("%s: %s", c.Code, c.Cause)
		}
	}
	return ""
}
