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

// trail is what the connections of a scope have been like. It is used by the follower's goroutine.
type trail struct {
	unsure  doubt  // since a connection last ended; what answers next may be another cluster
	short   int    // connections in a row that ended at once and brought nothing
	expired int    // connections in a row that ended because the API server does not have the history
	lostAt  string // the position that history was lost at; "" when none is known

	bookmarks bool // the API server sends them, so silence means something
	stale     bool // a connection fell silent and nothing has been heard since
	opened    bool // there was a connection before
	unproven  bool // nothing was watched yet since the last list
}

const (
	// steadyAfter is how long a connection must last, if nothing comes, to count as working. A proxy or a dying API
	// server may accept a watch and close it.
	steadyAfter = time.Second
	// staleAfter is how long a watch may be silent that brings bookmarks, about one a minute (KEP-956). A proxy may keep a
	// connection open that leads nowhere. Bookmarks are expected where there were some: API servers without a watch cache,
	// and kube-apiserver for events, send none.
	staleAfter = 3 * time.Minute
	// maxExpired is how many connections in a row must end with 410 before history counts as lost. An API server knows
	// nothing from before its own start; another one behind the same address may, and a new connection may lead to it.
	maxExpired = 6
	// maxShort is how many short connections in a row make the scope unreachable.
	maxShort = 3
)

var (
	errShort = errors.New("the API server ends each watch at once")
	errStale = fmt.Errorf("nothing was heard for %s, though there are bookmarks every minute", staleAfter)
)

// watch goes from connection to connection, each from the position that the one before has come to, until the API server
// no longer has the history; then there is no position, and it returns nil.
func (f *follower) watch(ctx context.Context) error {
	for f.at() != "" {
		err := f.watchOnce(ctx)
		var fatal *appendError
		if errors.As(err, &fatal) {
			return err
		}
		if err := f.ended(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// watchOnce watches on the connection that a WatchList has left open, or on a new one, and says how it ended.
func (f *follower) watchOnce(ctx context.Context) error {
	c := f.conn
	if f.conn = nil; c == nil {
		var err error
		if c, err = f.connect(ctx); err != nil {
			return err
		}
		if f.trail.opened {
			f.health.note(func(st *Status) { st.Restarts++ })
		}
	} else {
		f.works() // it has brought everything
	}
	f.trail.opened = true
	defer c.Stop()
	return f.pass(ctx, c)
}

// connect opens a connection at the position. It tries once.
func (f *follower) connect(ctx context.Context) (*apiserver.Connection, error) {
	if err := f.confirm(ctx); err != nil {
		return nil, err
	}
	s, e, o := &apiserver.Slot{Slow: f.slow}, f.endpoint.Load(), metav1.ListOptions{ResourceVersion: f.at()}
	if f.trail.expired > 0 { // and so it was reached
		return e.WatchAfresh(ctx, s, o)
	}
	if err := f.reached(ctx, s, f.at()); err != nil {
		return nil, err
	}
	c, err := e.Watch(ctx, s, o)
	if err != nil && apiserver.Classify(err) == apiserver.TooLarge {
		// It was reached a moment ago, if by another API server: not a loss but a lag.
		return nil, errors.New("the API server lags behind: " + apiserver.Reason(err))
	}
	return c, err
}

func (f *follower) slow() { f.health.failed(apiserver.ErrSlow) }

// pass emits what one connection brings until it ends, and says how.
func (f *follower) pass(ctx context.Context, c *apiserver.Connection) error {
	began, heard := time.Now(), false
	steady, quiet := time.NewTimer(steadyAfter), time.NewTimer(staleAfter)
	defer steady.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.nudged:
			return decode.ErrEnd
		case <-steady.C:
			if !f.trail.stale { // else it has to prove itself
				f.works()
			}
		case <-quiet.C:
			if f.trail.bookmarks {
				return errStale
			}
		case do := <-f.between:
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
			if err := f.take(ctx, b); err != nil {
				return &appendError{err}
			}
			quiet.Reset(staleAfter) // the journal may have taken its time
			if !heard {
				heard = true
				f.hears()
			}
		}
	}
}

// take emits a batch.
func (f *follower) take(ctx context.Context, b *apiserver.Batch) error {
	f.health.note(func(st *Status) { st.Events += b.Read })
	f.trail.bookmarks = f.trail.bookmarks || b.Bookmarks
	o, err := f.tracker.Load().Watched(b.Events, b.Position)
	if err != nil {
		return err
	}
	return f.put(ctx, o)
}

// hears notes that the connection brings something: so there is history from the position on. That it is open says less: an
// API server may take its time to say that there is none.
func (f *follower) hears() {
	if f.trail.expired > 0 {
		f.runner.source.cfg.Log.Info("another API server has the history that one has not", "scope", f.scope.ID)
	}
	f.trail.expired = 0
	f.works()
}

// works notes that the connection does what it should.
func (f *follower) works() {
	f.trail.short, f.trail.stale, f.trail.unproven = 0, false, false
	f.backoff.reset()
	f.health.become(Live, "")
}

// ended decides what follows the end of a connection, or the failure to open one.
func (f *follower) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.trail.unsure = doubtAfter(err)
	switch v := apiserver.Classify(err); {
	case errors.Is(err, decode.ErrEnd):
		// Its time was up, or the API server is leaving. The short wait keeps scopes from coming back in step.
		f.trail.expired = 0
	case errors.Is(err, errStale):
		f.trail.stale = true
		f.health.become(Stale, apiserver.Reason(err))
	case v == apiserver.Expired:
		if f.trail.expired++; f.trail.expired < maxExpired { // another API server may have it
			return f.pause(ctx, firstWait/2+rand.N(firstWait/2))
		}
		f.lose("the API server no longer has the history: " + apiserver.Reason(err))
		return f.pause(ctx, f.backoff.wait(err))
	case v == apiserver.TooLarge:
		f.lose(apiserver.Reason(err))
		return nil
	case errors.Is(err, errShort):
		if f.trail.short++; f.trail.short < maxShort {
			break
		}
		fallthrough
	default:
		// That is worse than silence, and what answers next may be another one.
		f.trail.stale, f.trail.bookmarks = false, false
		return f.failed(ctx, err)
	}
	return f.pause(ctx, f.backoff.wait(err))
}

// lose notes that history ends at the position, which is the follower's until the gap is emitted.
func (f *follower) lose(why string) {
	f.health.lost(f.at(), why)
	f.trail.lostAt, f.trail.expired = f.at(), 0
	f.stored = event.StoredScope{ID: f.scope.ID, Lost: why}
	f.position.Store(nil)
}
