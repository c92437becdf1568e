package source

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// follower keeps up with one scope. It lists what exists where there is no position to go on from, watches from there,
// and appends what the tracker makes of it. One goroutine runs it; nothing of what it shows waits for that.
type follower struct {
	runner             *runner
	scope              selection.Scope
	health             *health
	append             event.AppendFunc
	reconnectRequested chan struct{}                    // sent to when another endpoint is to be tried at once; capacity 1
	betweenBatches     chan func(context.Context) error // what is to be done between two batches of the watch

	endpoint atomic.Pointer[apiserver.Endpoint]
	tracker  atomic.Pointer[deltas.Tracker] // nil until what is stored is loaded
	position atomic.Pointer[string]         // as last appended

	// Of run alone.
	stored            event.StoredScope // what the store has of the scope, Position apart
	backoff           backoff
	pagesOnly         bool                  // WatchList does not work here
	unmarkedLists     int                   // WatchLists in a row that ended before the mark that all was sent
	unansweredQueries int                   // questions in a row that ended without an answer, see reached
	conn              *apiserver.Connection // open, behind what was read so far; nil when there is none
	watches           watchHistory
	bodiless          bool // the known objects have no bodies, and a rule asks for them
}

// errVanished says that the resource is served no more: discovery does not name it, and its own address answers 404.
var errVanished = errors.New("the resource is served no more")

// run follows the scope until ctx ends. It returns that error, errVanished, or one of append.
func (f *follower) run(ctx context.Context) error {
	stop := f.startBackgroundReads(ctx)
	defer stop()
	defer func() {
		if f.conn != nil {
			f.conn.Stop()
		}
	}()
	for {
		if f.currentPosition() == "" {
			if err := f.listUntilComplete(ctx); err != nil {
				return err
			}
		}
		if err := f.watchUntilLost(ctx); err != nil {
			return err
		}
	}
}

// currentPosition is the position that the scope has come to; "" when it must be listed.
func (f *follower) currentPosition() string {
	if p := f.position.Load(); p != nil {
		return *p
	}
	return ""
}

// confirmCluster makes sure that it is still the same cluster which answers.
func (f *follower) confirmCluster(ctx context.Context) error {
	return f.runner.source.confirmCluster(ctx, f.watches.recheck)
}

// appendObservation appends an observation and notes the position in it.
func (f *follower) appendObservation(ctx context.Context, o event.Observation) error {
	if len(o.Changes)+len(o.Known)+len(o.RemovedKeys)+len(o.Bodies) == 0 && o.LostReason == "" && (o.Position == "" || o.Position == f.currentPosition()) {
		return nil
	}
	if err := f.append(ctx, o); err != nil {
		return err
	}
	if o.LostReason != "" {
		f.stored.LostReason = o.LostReason
	}
	if o.Snapshot != "" {
		f.stored.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		f.position.Store(&o.Position)
		f.stored = event.StoredScope{ID: f.scope.ID}
	}
	return nil
}

// handleFailure notes that a request failed and waits before the next. It returns errVanished when it failed because the resource
// is served no more.
func (f *follower) handleFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if apiserver.Classify(err) == apiserver.NotServed && f.runner.confirmedMissing.Load() {
		return errVanished
	}
	f.watches.recheck = recheckAfter(err)
	f.health.recordFailure(err)
	return f.waitForRetry(ctx, f.backoff.nextWait(err))
}

// waitForRetry waits before the next try, shorter if there is another endpoint to try.
func (f *follower) waitForRetry(ctx context.Context, d time.Duration) error {
	return sleepUnlessSignaled(ctx, d, f.reconnectRequested)
}

// requestReconnect makes the follower ask again at once, on a new connection.
func (f *follower) requestReconnect() { signal(f.reconnectRequested) }

// switchVersion goes on with another version of the resource: the one watched is served no more, and the history of an object
// is the same in all versions.
func (f *follower) switchVersion(s selection.Scope) {
	next, err := f.runner.source.cfg.Client.Endpoint(s)
	if err != nil {
		return // it was possible for the version before
	}
	f.endpoint.Store(next)
	if t := f.tracker.Load(); t != nil {
		t.SetResource(s.Resource)
	}
	f.runner.source.cfg.Log.Info("the resource is served in another version, watching that", "scope", s.ID, "version", s.Resource.Version)
	f.requestReconnect()
}

// emitMissingDeletes emits that all objects that the list being read lacks are gone.
func (f *follower) emitMissingDeletes(ctx context.Context) error {
	for more := true; more; {
		o, again, err := f.tracker.Load().ObserveMissing()
		if err != nil {
			return err
		}
		if err := f.appendObservation(ctx, o); err != nil {
			return err
		}
		more = again
	}
	return nil
}

// emitAllDeletes emits that no known object is there any more. pass is empty unless they only left the selection.
func (f *follower) emitAllDeletes(ctx context.Context, pass string) error {
	f.tracker.Load().StartList(deltas.List{Pass: pass, Name: rand.Text()})
	if err := f.emitMissingDeletes(ctx); err != nil {
		return fmt.Errorf("emit that the objects of %s are gone: %w", f.scope.ID, err)
	}
	return nil
}

func (f *follower) status() Status {
	s := f.health.status()
	if e := f.endpoint.Load(); e != nil {
		s.DecodeErrors = e.DecodeErrors()
	}
	if t := f.tracker.Load(); t != nil {
		stats := t.Stats()
		s.Position, s.Known, s.LastEvent, s.Changes = f.currentPosition(), stats.Known, stats.LastSeen, stats.Changes
	}
	return s
}

// sleep waits for d, or until ctx ends, whose error it then returns.
func sleep(ctx context.Context, d time.Duration) error { return sleepUnlessSignaled(ctx, d, nil) }

// sleepUnlessSignaled is sleep that ends early, without an error, when something is sent to woken.
func sleepUnlessSignaled(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
