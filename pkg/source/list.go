package source

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

const (
	// initialEventsTimeout bounds the wait for the next initial event of a WatchList, and for the mark behind the last. An API server
	// that does not know the request may serve an ordinary watch instead, which never marks the end.
	initialEventsTimeout = time.Minute
	// maxUnmarkedLists is how many WatchLists may end early before LIST is used. A connection that breaks now and then is no
	// reason to; an API server that never marks the end is.
	maxUnmarkedLists = 3
	// pageSize is how many objects a LIST asks for at once. They are handled as they arrive, so it says nothing about
	// memory.
	pageSize = 500
)

// listUntilComplete reads what exists now and emits how that differs from what is known: on the first start, after history or the
// journal was lost, and after the rules were edited. It tries until it has all of it; what was emitted of a list that was
// broken off is known, and silent in the next.
func (f *follower) listUntilComplete(ctx context.Context) error {
	if err := f.awaitWatchable(ctx); err != nil {
		return err
	}
	for {
		err := f.readList(ctx)
		if err == nil {
			return nil
		}
		var fatal *appendError
		if errors.As(err, &fatal) {
			return err
		}
		f.updateListMode(err)
		switch apiserver.Classify(err) {
		case apiserver.Expired, apiserver.TooLarge: // of a page's token, or of a cache that is behind: begin again with the present
			if err := f.waitForRetry(ctx, f.backoff.nextWait(err)); err != nil {
				return err
			}
		case apiserver.Refused:
			if !f.pagesOnly {
				f.pagesOnly = true
				continue
			}
			fallthrough
		default:
			if err := f.handleFailure(ctx, err); err != nil {
				return err
			}
		}
	}
}

// awaitWatchable waits, where the last list could not be watched on from, until the present can be: an API server that lists
// at a position that it knows no history from is broken, and each further list would only emit the same gap again.
func (f *follower) awaitWatchable(ctx context.Context) error {
	for f.watches.unprovenList {
		err := f.probeWatch(ctx)
		if err == nil {
			f.watches.unprovenList = false
			break
		}
		if err := f.handleFailure(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// probeWatch watches from the present until that has brought something or has lasted.
func (f *follower) probeWatch(ctx context.Context) error {
	if err := f.confirmCluster(ctx); err != nil {
		return err
	}
	f.health.updateCounters(func(s *Status) { s.Lists++ })
	position, err := f.endpoint.Load().Newest(ctx)
	if err != nil {
		return err
	}
	if err := f.watchSteadilyFrom(ctx, position); err != nil {
		return fmt.Errorf("the API server cannot be watched from the position %s of its own list: %w", position, err)
	}
	return nil
}

func (f *follower) watchSteadilyFrom(ctx context.Context, position string) error {
	c, err := f.endpoint.Load().Watch(ctx, &apiserver.Slot{OnSlow: f.reportSlow}, metav1.ListOptions{ResourceVersion: position})
	if err != nil {
		return err
	}
	defer c.Stop()
	if _, err = c.Next(ctx, steadyAfter); errors.Is(err, apiserver.ErrQuiet) {
		return nil
	}
	return err
}

// beginList emits what must come before the objects of a list (I5), and lets the tracker know what they mean. The API server
// has begun to answer. to is the position that the list is true at; it is needed where history was lost.
func (f *follower) beginList(ctx context.Context, to string) error {
	t, s := f.tracker.Load(), f.stored
	l := deltas.List{Pass: s.Pass, Name: rand.Text()}
	if s.Snapshot == "" { // else it was stopped within its first list
		var first []*event.Change
		if s.LostReason != "" {
			gap := t.NewGap(f.watches.lostAt, to, s.LostReason)
			if gap.Pass = s.Pass; gap.Pass == "" && !isLaterPosition(f.watches.lostAt, to) {
				gap.Pass = rand.Text() // the same two positions may be lost again
			}
			f.watches.lostAt = to
			first = append(first, gap)
		}
		if t.KnownCount() == 0 && s.Pass == "" {
			s.Snapshot = rand.Text()
			first = append(first, t.NewSnapshotBegin(s.Snapshot))
		}
		o := t.NewObservation(first...)
		o.LostReason, o.Snapshot = s.LostReason, s.Snapshot
		if err := f.appendObservation(ctx, o); err != nil {
			return &appendError{err}
		}
	}
	if s.Snapshot != "" {
		l.Snapshot = &event.SnapshotInfo{ID: s.Snapshot}
	}
	t.StartList(l)
	f.health.setState(Syncing, "reading all objects")
	return nil
}

// isLaterPosition says that the cluster has come further between two positions. Of one that is not known nobody can say so.
func isLaterPosition(from, to string) bool {
	order, err := resourceversion.CompareResourceVersion(from, to)
	return err == nil && order < 0
}

// readList reads the whole list once. Where that is a WatchList the connection stays open. Where history was lost it is
// pages: only they say what the list is true at before its objects come, and that is where the gap ends.
func (f *follower) readList(ctx context.Context) error {
	s := &apiserver.Slot{Pool: f.runner.source.listSlots, OnSlow: f.reportSlow}
	if err := s.Acquire(ctx); err != nil {
		return err
	}
	defer s.Release()
	if err := f.confirmCluster(ctx); err != nil {
		return err
	}
	read := f.readWatchList
	if f.pagesOnly || f.stored.LostReason != "" {
		read = f.readPages
	}
	position, err := read(ctx, s)
	if err != nil {
		return err
	}
	if err := f.emitMissingDeletes(ctx); err != nil {
		return &appendError{err}
	}
	if err := f.appendObservation(ctx, f.tracker.Load().FinishList(position)); err != nil {
		return &appendError{err}
	}
	f.unmarkedLists = 0
	f.backoff.reset()
	f.watches.unprovenList = true
	f.health.updateCounters(func(st *Status) { st.Synced = true })
	return nil
}

// appendError says that it is not the API server that failed.
type appendError struct{ error }

func (e *appendError) Unwrap() error { return e.error }

// readWatchList reads the initial events of a WatchList (KEP-3157) and returns the position behind them.
func (f *follower) readWatchList(ctx context.Context, s *apiserver.Slot) (string, error) {
	yes := true
	c, err := f.endpoint.Load().Watch(ctx, s, metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return "", err
	}
	position := ""
	if err = f.beginList(ctx, ""); err == nil {
		position, err = f.readInitialEvents(ctx, c)
	}
	if err != nil {
		c.Stop()
		return "", err
	}
	f.conn = c
	return position, nil
}

// readInitialEvents reads up to the mark that all was sent. What happens meanwhile may come before the mark, but it is no sign of
// one to come: from then on all waiting counts. Only waiting does, because the journal may take its time.
func (f *follower) readInitialEvents(ctx context.Context, c *apiserver.Connection) (string, error) {
	patience, sent := initialEventsTimeout, false
	for {
		began := time.Now()
		b, err := c.Next(ctx, patience)
		if errors.Is(err, apiserver.ErrQuiet) {
			return "", errUnmarked
		}
		if err != nil {
			return "", err
		}
		if sent {
			patience -= time.Since(began)
		}
		sent = sent || b.Live
		if err := f.emitListed(ctx, b.Events, b.Read); err != nil {
			return "", err
		}
		if b.Listed {
			return b.Position, checkWatchable(b.Position)
		}
	}
}

var errUnmarked = fmt.Errorf("the API server sends nothing more of what exists, and has not marked the end for %s", initialEventsTimeout)

// checkWatchable refuses a list that cannot be gone on from: it would be read again and again.
func checkWatchable(position string) error {
	if apiserver.IsPosition(position) {
		return nil
	}
	return fmt.Errorf("the API server lists objects at no resourceVersion (%q) that could be watched on from", position)
}

// emitListed emits a part of a list.
func (f *follower) emitListed(ctx context.Context, events []deltas.Event, read uint64) error {
	f.health.updateCounters(func(s *Status) { s.Events += read })
	o, err := f.tracker.Load().ObserveEvents(events, "")
	if err == nil {
		err = f.appendObservation(ctx, o)
	}
	if err != nil {
		return &appendError{err}
	}
	return nil
}

// updateListMode decides whether WatchList is tried again.
func (f *follower) updateListMode(err error) {
	switch {
	case f.pagesOnly:
	case errors.Is(err, errUnmarked):
		f.pagesOnly = true
	case errors.Is(err, decode.ErrEnd):
		if f.unmarkedLists++; f.unmarkedLists >= maxUnmarkedLists {
			f.pagesOnly = true
		}
	}
}

// readPages reads the present in pages and returns the position that all of them are true at: that of the first page, which
// is one object. A page that breaks off is asked for again by its token; a token that has expired is an error, and the list
// begins again.
func (f *follower) readPages(ctx context.Context, s *apiserver.Slot) (string, error) {
	var b apiserver.Batch
	hold := func(o *deltas.Object) error {
		b.Add(deltas.Event{Type: watch.Added, Object: o}, len(o.Raw))
		return nil
	}
	emit := func() error {
		events := b.Events
		b = apiserver.Batch{}
		return f.emitListed(ctx, events, 0)
	}
	meta, err := f.readPage(ctx, s, metav1.ListOptions{Limit: 1}, hold)
	position := meta.ResourceVersion
	if err == nil {
		err = checkWatchable(position)
	}
	if err == nil {
		err = f.beginList(ctx, position)
	}
	for more := meta.Continue; err == nil; more = meta.Continue {
		if err = emit(); err != nil || more == "" {
			break
		}
		meta, err = f.readPage(ctx, s, metav1.ListOptions{Limit: pageSize, Continue: more}, func(o *deltas.Object) error {
			if _ = hold(o); b.Full() {
				return emit()
			}
			return nil
		})
	}
	return position, err
}

// readPage reads a page, and again by its token as long as it breaks off.
func (f *follower) readPage(
	ctx context.Context, s *apiserver.Slot, o metav1.ListOptions, take func(*deltas.Object) error,
) (metav1.ListMeta, error) {
	for {
		f.health.updateCounters(func(st *Status) { st.Lists++ })
		meta, err := f.endpoint.Load().List(ctx, s, o, take)
		var fatal *appendError
		if err == nil || errors.As(err, &fatal) || apiserver.Classify(err) != apiserver.Interrupted || o.Continue == "" {
			return meta, err
		}
		if err := f.handleFailure(ctx, err); err != nil {
			return meta, err
		}
	}
}
