package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

const (
	// steadyAfter is how long a silent connection must last to count as working. A proxy or a stopping API server may accept
	// a watch and close it.
	steadyAfter = time.Second
	// staleAfter is how long a watch that receives bookmarks, about one a minute (KEP-956), may be silent. A proxy may keep
	// a dead connection open.
	staleAfter = 3 * time.Minute
	// maxExpiredWatches is the number of consecutive connections that must end with 410 before history counts as lost. An
	// API server has no history from before its own start; another one behind the same address may have it, and a new
	// connection may reach that one.
	maxExpiredWatches = 6
	// maxShortWatches is the number of consecutive short connections that make the scope unreachable.
	maxShortWatches = 3
)

var (
	errUnwatchable = errors.New("it is served and can be listed, but cannot be watched")
	errShort       = errors.New("the API server ends each watch at once")
	errStale       = fmt.Errorf("the watch received nothing for %s, not even the bookmark that is due every minute", staleAfter)
)

// heartbeat is the expectation of bookmarks on a watch. API servers without a watch cache, and kube-apiserver for events,
// send no bookmarks, so silence is a failure only after one has been received.
type heartbeat int

const (
	heartbeatUnknown  heartbeat = iota // no bookmark received yet: silence is normal
	heartbeatExpected                  // bookmarks arrive: silence for staleAfter is a failure
	heartbeatLost                      // a connection was silent: the next must receive something to count as working
)

// watcher emits the changes of a scope, connection after connection, from its position. It belongs to the goroutine of
// follower.run, except for runBetweenBatches.
type watcher struct {
	out       *emitter
	api       *scopeClient
	health    *health
	log       *slog.Logger
	positions positionCheck
	between   chan func(context.Context) error // work of background reads, done between two batches
	due       func(context.Context) error      // that of them which is the next to be done; nil for none
	ended     chan struct{}                    // closed when nothing of it is done any more
	before    *statesBefore                    // nil unless bodies are missing

	heartbeat      heartbeat
	shortWatches   int  // consecutive connections that ended at once without an event
	expiredWatches int  // consecutive connections that ended with 410
	openedBefore   bool // a connection was opened before; further ones count as restarts
	listed         bool // the position is that of a list, and no connection was opened since
	listUnproven   bool // nothing was watched since the last list
}

// watchUntilLost watches until the API server no longer has the history; it then returns nil, and the scope has no position.
// Other errors are those of ctx, errVanished and *appendError.
func (w *watcher) watchUntilLost(ctx context.Context) error {
	for w.out.currentPosition() != "" {
		err := w.runWatch(ctx)
		var fatal *appendError
		if errors.As(err, &fatal) {
			return err
		}
		if err := w.handleWatchEnd(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// runWatch watches on a new connection, and returns how it ended.
func (w *watcher) runWatch(ctx context.Context) error {
	revoked, err := w.api.admit(ctx)
	if err != nil {
		return err
	}
	c, err := w.openWatch(ctx)
	if v := apiserver.Classify(err); w.listUnproven && (v == apiserver.NotServed || apiserver.IsRefusal(err)) {
		err = fmt.Errorf("%w: %w", errUnwatchable, err)
	}
	if err != nil {
		return err
	}
	defer c.Stop()
	if w.openedBefore {
		w.health.updateCounters(func(st *Status) { st.Restarts++ })
	}
	if w.listed {
		w.health.recordLive(false) // the list shows that the API server works
	}
	w.openedBefore, w.listed = true, false
	return w.emitWatched(ctx, c, revoked)
}

// openWatch opens a connection at the position. It tries once.
func (w *watcher) openWatch(ctx context.Context) (*apiserver.Connection, error) {
	if err := w.api.confirmCluster(ctx); err != nil {
		return nil, err
	}
	s, e, position := w.api.newSlot(nil), w.api.endpoint.Load(), w.out.currentPosition()
	o := metav1.ListOptions{ResourceVersion: position}
	if w.expiredWatches > 0 { // the answer 410 shows that the API server is past the position
		return e.WatchOnNewConnection(ctx, s, o)
	}
	if !w.listed {
		if err := w.positions.checkReached(ctx, s, position); err != nil {
			return nil, err
		}
	}
	c, err := e.Watch(ctx, s, o)
	if err != nil && apiserver.Classify(err) == apiserver.TooLarge {
		// An API server reached the position a moment ago, so this one only lags behind. It must not count as a loss.
		return nil, errors.New("the API server lags behind: " + apiserver.Reason(err))
	}
	return c, err
}

// emitWatched emits what a connection delivers until it ends, or it may no longer be emitted, and returns how it ended.
func (w *watcher) emitWatched(ctx context.Context, c *apiserver.Connection, revoked Changed) error {
	began, received := time.Now(), false
	steady, silent := time.NewTimer(steadyAfter), time.NewTimer(staleAfter)
	defer steady.Stop()
	defer silent.Stop()
	for {
		if w.due != nil {
			if err := w.inTurn(func() error {
				do := w.due
				w.due = nil
				return do(ctx)
			}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.api.reconnect:
			return decode.ErrEnd
		case <-revoked[0]:
			return decode.ErrEnd
		case <-revoked[1]:
			return decode.ErrEnd
		case <-steady.C:
			if w.heartbeat != heartbeatLost {
				w.markHealthy()
			}
		case <-silent.C:
			if w.heartbeat != heartbeatUnknown {
				return errStale
			}
			w.api.endpoint.Load().Ways.Learn(apiserver.Bookmarks, fmt.Errorf("none within %s", staleAfter))
		case now := <-w.out.watermarks.dueChannel():
			w.out.watermarks.timer.Reset(0) // in case that it has no turn
			if err := w.inTurn(func() error { return w.out.emitWatermarks(ctx, now) }); err != nil {
				return err
			}
		case w.due = <-w.between:
		case b, ok := <-c.Batches:
			if !ok && errors.Is(c.Err, decode.ErrEnd) && !received && time.Since(began) < steadyAfter {
				return errShort
			}
			if !ok {
				return c.Err
			}
			if err := w.inTurn(func() error { return w.emitBatch(ctx, b) }); err != nil {
				return err
			}
			silent.Reset(staleAfter) // after the append: a slow journal is not silence
			if !received {
				received = true
				w.markReceived()
			}
		}
	}
}

// runBetweenBatches runs do on the follower's goroutine between two batches of the watch. It waits while there is no watch,
// and returns when do begins; or with the error of ctx when ctx ends first. Safe for concurrent use.
func (w *watcher) runBetweenBatches(ctx context.Context, do func(context.Context) error) error {
	select {
	case w.between <- do:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inTurn emits something. If the rule is paused it does not, and the connection is to end.
func (w *watcher) inTurn(emit func() error) error {
	end, err := w.api.beginTurn()
	if err != nil {
		return decode.ErrEnd
	}
	defer end()
	return emit()
}

func (w *watcher) emitBatch(ctx context.Context, b *apiserver.Batch) error {
	w.health.updateCounters(func(st *Status) { st.Events += b.Read })
	if b.Bookmarks && w.heartbeat == heartbeatUnknown {
		w.becomeHeartbeat(heartbeatExpected)
		w.api.endpoint.Load().Ways.Learn(apiserver.Bookmarks, nil)
	}
	if err := w.before.storeFor(ctx, b.Events); err != nil {
		return err
	}
	return w.out.emitEvents(ctx, b.Events, b.Position)
}

// becomeHeartbeat is the only transition of heartbeat. A lost heartbeat makes the scope stale.
func (w *watcher) becomeHeartbeat(next heartbeat) {
	w.heartbeat = next
	if next == heartbeatLost {
		w.health.recordProblem(condition.Problem{Code: condition.ResourceSilent, Cause: errStale.Error()})
	}
}

// markReceived records that a connection has delivered something, which proves that the API server has the history after the
// position. An open connection proves nothing: the API server may answer 410 late.
func (w *watcher) markReceived() {
	if w.expiredWatches > 0 {
		w.log.Info("another API server still has the history", "scope", w.out.scope.ID)
	}
	w.expiredWatches = 0
	w.markHealthy()
}

// markHealthy records that the connection works.
func (w *watcher) markHealthy() {
	w.shortWatches, w.listUnproven = 0, false
	if w.heartbeat == heartbeatLost {
		w.becomeHeartbeat(heartbeatExpected)
	}
	w.api.backoff.reset()
	w.health.recordLive(true)
}

// handleWatchEnd decides how to continue after the end of a connection, or after a failure to open one, and waits as long as
// that requires.
func (w *watcher) handleWatchEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.api.recheck = recheckAfter(err)
	switch v := apiserver.Classify(err); {
	case errors.Is(err, decode.ErrEnd):
		// The watch timed out, or the API server is stopping. The short wait keeps scopes from reconnecting in step.
		w.expiredWatches = 0
	case errors.Is(err, errStale):
		w.becomeHeartbeat(heartbeatLost)
	case v == apiserver.Expired:
		if w.expiredWatches++; w.expiredWatches < maxExpiredWatches {
			return w.api.waitFor(ctx, minWait/2+rand.N(minWait/2))
		}
		w.recordHistoryLost("the API server no longer has the history: " + apiserver.Reason(err))
	case v == apiserver.TooLarge:
		w.recordHistoryLost(apiserver.Reason(err))
		return nil
	case errors.Is(err, errShort):
		if w.shortWatches++; w.shortWatches < maxShortWatches {
			break
		}
		fallthrough
	default:
		// A failure outranks silence, and the next answer may come from an API server that sends no bookmarks.
		w.becomeHeartbeat(heartbeatUnknown)
		return w.api.handleFailure(ctx, err)
	}
	return w.api.waitAfter(ctx, err)
}

// recordHistoryLost gives up the position, so that the scope is listed again, with a gap (I5).
func (w *watcher) recordHistoryLost(why string) {
	w.health.recordHistoryLost(w.out.currentPosition(), why)
	w.expiredWatches = 0
	w.out.loseHistory(why)
}
