package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

// watchHistory is what the connections of a scope have been like. It is used by the follower's goroutine.
type watchHistory struct {
	recheck        clusterRecheck // since a connection last ended; what answers next may be another cluster
	shortWatches   int            // connections in a row that ended at once and brought nothing
	expiredWatches int            // connections in a row that ended because the API server does not have the history
	lostAt         string         // the position that history was lost at; "" when none is known

	bookmarks    bool // the API server sends them, so silence means something
	stale        bool // a connection fell silent and nothing has been heard since
	openedBefore bool // there was a connection before
	unprovenList bool // nothing was watched yet since the last list
}

const (
	// steadyAfter is how long a connection must last, if nothing comes, to count as working. A proxy or a dying API
	// server may accept a watch and close it.
	steadyAfter = time.Second
	// staleAfter is how long a watch may be silent that brings bookmarks, about one a minute (KEP-956). A proxy may keep a
	// connection open that leads nowhere. Bookmarks are expected where there were some: API servers without a watch cache,
	// and kube-apiserver for events, send none.
	staleAfter = 3 * time.Minute
	// maxExpiredWatches is how many connections in a row must end with 410 before history counts as lost. An API server knows
	// nothing from before its own start; another one behind the same address may, and a new connection may lead to it.
	maxExpiredWatches = 6
	// maxShortWatches is how many short connections in a row make the scope unreachable.
	maxShortWatches = 3
)

var (
	errShort = errors.New("the API server ends each watch at once")
	errStale = fmt.Errorf("nothing was heard for %s, though there are bookmarks every minute", staleAfter)
)

// watchUntilLost goes from connection to connection, each from the position that the one before has come to, until the API server
// no longer has the history; then there is no position, and it returns nil.
func (f *follower) watchUntilLost(ctx context.Context) error {
	for f.currentPosition() != "" {
		err := f.runWatch(ctx)
		var fatal *appendError
		if errors.As(err, &fatal) {
			return err
		}
		if err := f.handleWatchEnd(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// runWatch watches on the connection that a WatchList has left open, or on a new one, and says how it ended.
func (f *follower) runWatch(ctx context.Context) error {
	c := f.conn
	if f.conn = nil; c == nil {
		var err error
		if c, err = f.openWatch(ctx); err != nil {
			return err
		}
		if f.watches.openedBefore {
			f.health.updateCounters(func(st *Status) { st.Restarts++ })
		}
	} else {
		f.markHealthy() // it has brought everything
	}
	f.watches.openedBefore = true
	defer c.Stop()
	return f.emitWatched(ctx, c)
}

// openWatch opens a connection at the position. It tries once.
func (f *follower) openWatch(ctx context.Context) (*apiserver.Connection, error) {
	if err := f.confirmCluster(ctx); err != nil {
		return nil, err
	}
	s, e, o := &apiserver.Slot{OnSlow: f.reportSlow}, f.endpoint.Load(), metav1.ListOptions{ResourceVersion: f.currentPosition()}
	if f.watches.expiredWatches > 0 { // and so it was reached
		return e.WatchOnNewConnection(ctx, s, o)
	}
	if err := f.checkReached(ctx, s, f.currentPosition()); err != nil {
		return nil, err
	}
	c, err := e.Watch(ctx, s, o)
	if err != nil && apiserver.Classify(err) == apiserver.TooLarge {
		// It was reached a moment ago, if by another API server: not a loss but a lag.
		return nil, errors.New("the API server lags behind: " + apiserver.Reason(err))
	}
	return c, err
}

func (f *follower) reportSlow() { f.health.recordFailure(apiserver.ErrSlow) }

// emitWatched emits what one connection brings until it ends, and says how.
func (f *follower) emitWatched(ctx context.Context, c *apiserver.Connection) error {
	began, heard := time.Now(), false
	steady, quiet := time.NewTimer(steadyAfter), time.NewTimer(staleAfter)
	defer steady.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.reconnectRequested:
			return decode.ErrEnd
		case <-steady.C:
			if !f.watches.stale { // else it has to prove itself
				f.markHealthy()
			}
		case <-quiet.C:
			if f.watches.bookmarks {
				return errStale
			}
		case do := <-f.betweenBatches:
			if err := do(ctx); err != nil {
				return &appendError{err}
			}
		case b, ok := <-c.Batches:
			if !ok && errors.Is(c.Err, decode.ErrEnd) && !heard && time.Since(began) < steadyAfter {
				return errShort
			}
			if !ok {
				return c.Err
			}
			if err := f.emitBatch(ctx, b); err != nil {
				return &appendError{err}
			}
			quiet.Reset(staleAfter) // the journal may have taken its time
			if !heard {
				heard = true
				f.markReceived()
			}
		}
	}
}

// emitBatch emits a batch.
func (f *follower) emitBatch(ctx context.Context, b *apiserver.Batch) error {
	f.health.updateCounters(func(st *Status) { st.Events += b.Read })
	f.watches.bookmarks = f.watches.bookmarks || b.Bookmarks
	o, err := f.tracker.Load().ObserveEvents(b.Events, b.Position)
	if err != nil {
		return err
	}
	return f.appendObservation(ctx, o)
}

// markReceived notes that the connection brings something: so there is history from the position on. That it is open says less: an
// API server may take its time to say that there is none.
func (f *follower) markReceived() {
	if f.watches.expiredWatches > 0 {
		f.runner.source.cfg.Log.Info("another API server has the history that one has not", "scope", f.scope.ID)
	}
	f.watches.expiredWatches = 0
	f.markHealthy()
}

// markHealthy notes that the connection does what it should.
func (f *follower) markHealthy() {
	f.watches.shortWatches, f.watches.stale, f.watches.unprovenList = 0, false, false
	f.backoff.reset()
	f.health.setState(Live, "")
}

// handleWatchEnd decides what follows the end of a connection, or the failure to open one.
func (f *follower) handleWatchEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.watches.recheck = recheckAfter(err)
	switch v := apiserver.Classify(err); {
	case errors.Is(err, decode.ErrEnd):
		// Its time was up, or the API server is leaving. The short wait keeps scopes from coming back in step.
		f.watches.expiredWatches = 0
	case errors.Is(err, errStale):
		f.watches.stale = true
		f.health.setState(Stale, apiserver.Reason(err))
	case v == apiserver.Expired:
		if f.watches.expiredWatches++; f.watches.expiredWatches < maxExpiredWatches { // another API server may have it
			return f.waitForRetry(ctx, minWait/2+rand.N(minWait/2))
		}
		f.recordHistoryLost("the API server no longer has the history: " + apiserver.Reason(err))
		return f.waitForRetry(ctx, f.backoff.nextWait(err))
	case v == apiserver.TooLarge:
		f.recordHistoryLost(apiserver.Reason(err))
		return nil
	case errors.Is(err, errShort):
		if f.watches.shortWatches++; f.watches.shortWatches < maxShortWatches {
			break
		}
		fallthrough
	default:
		// That is worse than silence, and what answers next may be another one.
		f.watches.stale, f.watches.bookmarks = false, false
		return f.handleFailure(ctx, err)
	}
	return f.waitForRetry(ctx, f.backoff.nextWait(err))
}

// recordHistoryLost notes that history ends at the position, which is the follower's until the gap is emitted.
func (f *follower) recordHistoryLost(why string) {
	f.health.recordHistoryLost(f.currentPosition(), why)
	f.watches.lostAt, f.watches.expiredWatches = f.currentPosition(), 0
	f.stored = event.StoredScope{ID: f.scope.ID, LostReason: why}
	f.position.Store(nil)
}
