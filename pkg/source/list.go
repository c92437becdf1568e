package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

const (
	// initialEventsTimeout bounds the wait for the next initial event of a WatchList, and for the bookmark after the last.
	// An API server that does not know the request may serve an ordinary watch instead, which never sends that bookmark.
	initialEventsTimeout = time.Minute
	// maxUnmarkedLists is the number of consecutive WatchLists that may end early before LIST is used. Connections break now
	// and then; an API server that never marks the end breaks all of them.
	maxUnmarkedLists = 3
	// pageSize is the number of objects per LIST page. Objects are handled as they arrive, so it does not bound memory.
	pageSize = 500
)

// lister reads all objects of a scope and emits the differences from the known objects: on the first start, after history or
// the journal was lost, and after the rules were edited. It prefers a WatchList (KEP-3157): the watch then continues on the
// same connection. It belongs to the goroutine of follower.run.
type lister struct {
	out    *emitter
	api    *scopeClient
	health *health
	slots  chan struct{}

	pagesOnly     bool // WatchList does not work with this API server
	unmarkedLists int  // consecutive WatchLists that ended before the end mark
}

// listUntilComplete lists until a list is complete. Objects emitted by an interrupted list are known afterwards, so the next
// list does not emit them again. It returns the connection to watch on, or nil. Errors are those of ctx, errVanished and
// *appendError.
func (l *lister) listUntilComplete(ctx context.Context) (*apiserver.Connection, error) {
	for {
		open, err := l.readList(ctx)
		if err == nil {
			return open, nil
		}
		var fatal *appendError
		if errors.As(err, &fatal) {
			return nil, err
		}
		l.updateListMode(err)
		switch apiserver.Classify(err) {
		case apiserver.Expired, apiserver.TooLarge:
			// The token of a page has expired, or a cache lags behind: start again with the current state.
			err = l.api.waitAfter(ctx, err)
		case apiserver.Refused:
			if !l.pagesOnly {
				l.pagesOnly = true
				continue
			}
			fallthrough
		default:
			err = l.api.handleFailure(ctx, err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// updateListMode decides after a failure whether WatchList is tried again.
func (l *lister) updateListMode(err error) {
	switch {
	case l.pagesOnly:
	case errors.Is(err, errUnmarked):
		l.pagesOnly = true
	case errors.Is(err, decode.ErrEnd):
		if l.unmarkedLists++; l.unmarkedLists >= maxUnmarkedLists {
			l.pagesOnly = true
		}
	}
}

// awaitWatchable waits until the API server can be watched from its own current position. It is called if the previous list
// could not be watched from: an API server without history at the position of its own list is broken, and listing again
// would only emit the same gap again.
func (l *lister) awaitWatchable(ctx context.Context) error {
	for {
		err := l.probeWatch(ctx)
		if err == nil {
			return nil
		}
		if err := l.api.handleFailure(ctx, err); err != nil {
			return err
		}
	}
}

// probeWatch watches from the current position until the watch has delivered something or lasted for steadyAfter.
func (l *lister) probeWatch(ctx context.Context) error {
	if err := l.api.confirmCluster(ctx); err != nil {
		return err
	}
	position, err := l.api.newestPosition(ctx)
	if err != nil {
		return err
	}
	if err := l.watchSteadilyFrom(ctx, position); err != nil {
		return fmt.Errorf("the API server cannot be watched from the position %s of its own list: %w", position, err)
	}
	return nil
}

func (l *lister) watchSteadilyFrom(ctx context.Context, position string) error {
	c, err := l.api.endpoint.Load().Watch(ctx, l.api.newSlot(nil), metav1.ListOptions{ResourceVersion: position})
	if err != nil {
		return err
	}
	defer c.Stop()
	if _, err = c.Next(ctx, steadyAfter); errors.Is(err, apiserver.ErrQuiet) {
		return nil
	}
	return err
}

// readList reads one complete list. If history was lost it uses pages, because only the first page shows the position of the
// list before the objects, and the gap ends at that position.
func (l *lister) readList(ctx context.Context) (open *apiserver.Connection, err error) {
	s := l.api.newSlot(l.slots)
	if err := s.Acquire(ctx); err != nil {
		return nil, err
	}
	defer s.Release()
	if err := l.api.confirmCluster(ctx); err != nil {
		return nil, err
	}
	var position string
	if l.pagesOnly || l.out.hasPendingGap() {
		position, err = l.readPages(ctx, s)
	} else {
		open, position, err = l.readWatchList(ctx, s)
	}
	if err == nil {
		err = l.out.finishList(ctx, position)
	}
	if err != nil {
		if open != nil {
			open.Stop()
		}
		return nil, err
	}
	l.unmarkedLists = 0
	l.api.backoff.reset()
	l.health.updateCounters(func(st *Status) { st.Synced = true })
	return open, nil
}

// beginList emits what precedes the objects of a list, see emitter.beginList.
func (l *lister) beginList(ctx context.Context, to string) error {
	if err := l.out.beginList(ctx, to); err != nil {
		return err
	}
	l.health.setState(Syncing, "reading all objects")
	return nil
}

// emitListed emits a part of a list. events counts the watch events among it.
func (l *lister) emitListed(ctx context.Context, part []deltas.Event, events uint64) error {
	l.health.updateCounters(func(s *Status) { s.Events += events })
	return l.out.emitEvents(ctx, part, "")
}

// readWatchList reads the initial events of a WatchList (KEP-3157). It returns the connection, open after them, and its
// position.
func (l *lister) readWatchList(ctx context.Context, s *apiserver.Slot) (*apiserver.Connection, string, error) {
	yes := true
	c, err := l.api.endpoint.Load().Watch(ctx, s, metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return nil, "", err
	}
	position := ""
	if err = l.beginList(ctx, ""); err == nil {
		position, err = l.readInitialEvents(ctx, c)
	}
	if err != nil {
		c.Stop()
		return nil, "", err
	}
	return c, position, nil
}

var errUnmarked = fmt.Errorf(
	"the API server has sent no further object and no end mark of the list for %s", initialEventsTimeout)

// readInitialEvents reads up to the bookmark that ends the initial events. Live changes may come before that bookmark but do
// not show that it is near: after the first one the waits are added up. Only waiting for the API server counts, because the
// journal may be slow.
func (l *lister) readInitialEvents(ctx context.Context, c *apiserver.Connection) (string, error) {
	timeout, sawLive := initialEventsTimeout, false
	for {
		began := time.Now()
		b, err := c.Next(ctx, timeout)
		if errors.Is(err, apiserver.ErrQuiet) {
			return "", errUnmarked
		}
		if err != nil {
			return "", err
		}
		if sawLive {
			timeout -= time.Since(began)
		}
		sawLive = sawLive || b.Live
		if err := l.emitListed(ctx, b.Events, b.Read); err != nil {
			return "", err
		}
		if b.Listed {
			return b.Position, checkWatchable(b.Position)
		}
	}
}

// checkWatchable rejects a list without a position to watch from: it would be read again and again.
func checkWatchable(position string) error {
	if apiserver.IsPosition(position) {
		return nil
	}
	return fmt.Errorf("the API server lists objects at a resourceVersion (%q) that cannot be watched from", position)
}

// readPages reads a consistent list in pages and returns its position, that of the first page, which is a single object. An
// interrupted page is read again by its token. An expired token is an error: the list starts again.
func (l *lister) readPages(ctx context.Context, s *apiserver.Slot) (string, error) {
	var b apiserver.Batch
	hold := func(o *deltas.Object) error {
		b.Add(deltas.Event{Type: watch.Added, Object: o}, len(o.Raw))
		return nil
	}
	emit := func() error {
		events := b.Events
		b = apiserver.Batch{}
		return l.emitListed(ctx, events, 0)
	}
	meta, err := l.readPage(ctx, s, metav1.ListOptions{Limit: 1}, hold)
	position := meta.ResourceVersion
	if err == nil {
		err = checkWatchable(position)
	}
	if err == nil {
		err = l.beginList(ctx, position)
	}
	for more := meta.Continue; err == nil; more = meta.Continue {
		if err = emit(); err != nil || more == "" {
			break
		}
		meta, err = l.readPage(ctx, s, metav1.ListOptions{Limit: pageSize, Continue: more}, func(o *deltas.Object) error {
			if _ = hold(o); b.Full() {
				return emit()
			}
			return nil
		})
	}
	return position, err
}

// readPage reads a page, and reads it again by its token while it is interrupted. The first page has no token: its
// interruption is an error.
func (l *lister) readPage(
	ctx context.Context, s *apiserver.Slot, o metav1.ListOptions, handle func(*deltas.Object) error,
) (metav1.ListMeta, error) {
	for {
		l.health.updateCounters(func(st *Status) { st.Lists++ })
		meta, err := l.api.endpoint.Load().List(ctx, s, o, handle)
		var fatal *appendError
		if err == nil || errors.As(err, &fatal) || apiserver.Classify(err) != apiserver.Interrupted || o.Continue == "" {
			return meta, err
		}
		if err := l.api.handleFailure(ctx, err); err != nil {
			return meta, err
		}
	}
}
