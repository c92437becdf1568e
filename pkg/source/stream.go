package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

// stream is a watch that outlives its connections. When one ends, for whatever reason, it opens the next from the last
// resourceVersion it passed on, so that its reader sees one unbroken history. It ends in two ways: its context ends, or
// the API server no longer has the history; then its last event is an ERROR with reason Expired, which client-go's
// Reflector answers with a new list.
//
// A stream that begins with a WatchList must first come to the mark that all objects were sent. Until then there is no
// resourceVersion to go on from, and a broken connection ends the stream in the same way, after a wait.
type stream struct {
	r        *resuming
	out      chan watch.Event
	cancel   context.CancelFunc
	position string
	ordered  bool // events are in order of their resourceVersion, so position may follow them
	patience patience
	short    int   // connections in a row that ended at once and brought nothing
	expired  int   // connections in a row that ended because the API server does not have the history
	unsure   doubt // since a connection last ended; what answers next may be another cluster

	bookmarks bool // the API server sends them, so silence means something
	stale     bool // a connection fell silent and nothing has been heard since
}

const (
	// steadyAfter is how long a connection must last, if nothing comes, to count as working. A proxy or a dying API
	// server may accept a watch and close it.
	steadyAfter = time.Second
	// silence bounds the wait for the next initial event of a WatchList. An API server that does not know the request
	// may serve an ordinary watch instead, which never marks the end.
	silence = time.Minute
	// staleAfter is how long a watch may be silent that brings bookmarks, about one a minute (KEP-956). A proxy may keep a
	// connection open that leads nowhere. Bookmarks are expected where there were some: API servers without a watch cache,
	// and kube-apiserver for events, send none.
	staleAfter = 3 * time.Minute
	// slowAfter is how long an API server may take to open a watch. One whose cache cannot be filled lets requests wait,
	// half a minute and more, before it says so.
	slowAfter = 10 * time.Second
	// maxExpired is how many connections in a row must end with 410 before history counts as lost. An API server knows
	// nothing from before its own start; another one behind the same address may, and a new connection may lead to it.
	maxExpired = 6
	// maxShort is how many short connections in a row make the scope unreachable.
	maxShort = 3
)

var (
	errStreamEnd = errors.New("the API server ended the watch")
	errShort     = errors.New("the API server ends each watch at once")
	errStale     = fmt.Errorf("nothing was heard for %s, though there are bookmarks every minute", staleAfter)
	errSlow      = fmt.Errorf("the API server has not answered the request to watch for %s", slowAfter)
	errSilent    = errors.New("the API server does not mark the end of the initial events")
)

// startStream runs a stream from position, or from a WatchList whose first connection is initial and which holds a slot.
func (r *resuming) startStream(ctx context.Context, position string, initial watch.Interface) (watch.Interface, error) {
	if err := r.enter(); err != nil {
		if initial != nil {
			initial.Stop()
			r.release()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{r: r, out: make(chan watch.Event), cancel: cancel, position: position, ordered: position != ""}
	go func() {
		defer r.inside.Done()
		defer cancel()
		defer close(s.out)
		if initial != nil && !s.runInitial(ctx, initial) {
			return
		}
		s.run(ctx)
	}()
	return s, nil
}

// Stop ends the stream. It may be called more than once.
func (s *stream) Stop() { s.cancel() }

// ResultChan returns the events.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// runInitial passes on the initial events and, behind their end, what comes on the same connection. It says whether the
// stream goes on.
func (s *stream) runInitial(ctx context.Context, w watch.Interface) bool {
	s.r.health.become(Syncing, "reading all objects")
	err := s.passInitial(ctx, w)
	s.r.release()
	if err == nil {
		s.r.listed()
		s.works() // it has brought everything
		err = s.pass(ctx, w)
		w.Stop()
		return s.after(ctx, err)
	}
	w.Stop()
	if ctx.Err() != nil {
		return false
	}
	s.r.initialFailed(err)
	if v := judge(err); v != expired && v != tooLarge {
		s.r.health.failed(err)
	}
	if s.r.pause(ctx, s.patience.wait(err)) == nil {
		s.expire(ctx)
	}
	return false
}

// initialFailed decides whether WatchList is tried again.
func (r *resuming) initialFailed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, errSilent), judge(err) == refused:
		r.listOnly = true
	case errors.Is(err, errStreamEnd):
		if r.endless++; r.endless >= maxEndless {
			r.listOnly = true
		}
	}
}

// passInitial passes on events up to the mark that ends the initial ones.
func (s *stream) passInitial(ctx context.Context, w watch.Interface) error {
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-quiet.C:
			return errSilent
		case e, ok := <-w.ResultChan():
			if !ok {
				return errStreamEnd
			}
			quiet.Reset(silence)
			if e.Type == watch.Error {
				return statusOf(e)
			}
			o, isObject := e.Object.(*deltas.Object)
			if isObject && e.Type == watch.Added {
				staged, err := s.r.stageOne(o)
				if err != nil {
					return err
				}
				e.Object = staged
			}
			if !s.send(ctx, e) {
				return ctx.Err()
			}
			s.follow(e)
			if isObject && e.Type == watch.Bookmark && o.InitialEventsEnd {
				return nil
			}
		}
	}
}

// run opens one connection after another until history or the context ends.
func (s *stream) run(ctx context.Context) {
	for first := true; ; first = false {
		w, err := s.open(ctx, first)
		if err != nil {
			return
		}
		err = s.pass(ctx, w)
		w.Stop()
		if !s.after(ctx, err) {
			return
		}
	}
}

// open opens a connection at the position, however long that takes. After an error the stream has ended.
func (s *stream) open(ctx context.Context, first bool) (watch.Interface, error) {
	for {
		w, err := s.try(ctx)
		if err == nil {
			if !first {
				s.r.health.note(func(st *Status) { st.Restarts++ })
			}
			return w, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		wait := s.patience.wait(err)
		switch v := judge(err); {
		case v == expired && s.mayBeElsewhere():
			wait = elsewhereWait()
		case v == expired, v == tooLarge:
			s.lose(ctx, err)
			return nil, err
		default:
			s.failed(err)
		}
		if err := s.r.pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// mayBeElsewhere counts a connection that ended with 410, and says whether to look for another API server that has the
// history.
func (s *stream) mayBeElsewhere() bool {
	s.expired++
	return s.expired < maxExpired
}

func elsewhereWait() time.Duration { return firstWait/2 + rand.N(firstWait/2) }

// try opens a connection, and says so where that takes long.
func (s *stream) try(ctx context.Context) (watch.Interface, error) {
	told := make(chan struct{})
	slow := time.AfterFunc(slowAfter, func() {
		defer close(told)
		s.r.health.failed(errSlow)
	})
	defer func() {
		if !slow.Stop() {
			<-told // so that it does not come behind what follows
		}
	}()
	return s.connect(ctx)
}

func (s *stream) connect(ctx context.Context) (watch.Interface, error) {
	if err := s.r.confirm(ctx, s.unsure); err != nil {
		return nil, err
	}
	if s.expired > 0 { // and so it was reached
		return s.r.endpoint().watchAfresh(ctx, metav1.ListOptions{ResourceVersion: s.position})
	}
	if s.position != "" {
		if err := s.r.reached(ctx, s.position); err != nil {
			return nil, err
		}
	}
	w, err := s.r.endpoint().watch(ctx, metav1.ListOptions{ResourceVersion: s.position})
	if err != nil && judge(err) == tooLarge {
		// It was reached a moment ago, if by another API server: not a loss but a lag.
		return nil, errors.New("the API server lags behind: " + reason(err))
	}
	return w, err
}

// pass passes on the events of one connection until it ends, and says how.
func (s *stream) pass(ctx context.Context, w watch.Interface) error {
	began, events := time.Now(), 0
	steady, quiet := time.NewTimer(steadyAfter), time.NewTimer(staleAfter)
	defer steady.Stop()
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-steady.C:
			if !s.stale { // else it has to prove itself
				s.works()
			}
		case <-quiet.C:
			if s.bookmarks {
				return errStale
			}
		case e, ok := <-w.ResultChan():
			if !ok && events == 0 && time.Since(began) < steadyAfter {
				return errShort
			}
			if !ok {
				return errStreamEnd
			}
			if e.Type == watch.Error {
				return statusOf(e)
			}
			if !s.send(ctx, e) {
				return ctx.Err()
			}
			s.follow(e)
			quiet.Reset(staleAfter) // the reader may have taken its time
			s.bookmarks = s.bookmarks || e.Type == watch.Bookmark
			if events++; events == 1 {
				s.works()
			}
		}
	}
}

// works notes that the connection does what it should.
func (s *stream) works() {
	if s.expired > 0 {
		s.r.health.log.Info("another API server has the history that one has not")
	}
	s.short, s.stale, s.expired = 0, false, 0
	s.patience.reset()
	s.r.health.become(Live, "")
}

// failed notes that the API server does not answer as it should. That is worse than silence, and what answers next may
// be another one.
func (s *stream) failed(err error) {
	s.unsure = doubtAfter(err)
	s.stale, s.bookmarks = false, false
	s.r.health.failed(err)
}

// after decides what follows the end of a connection and says whether the stream goes on.
func (s *stream) after(ctx context.Context, err error) bool {
	s.unsure = doubtAfter(err)
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, errStreamEnd):
		// Its time was up, or the API server is leaving. The short wait keeps scopes from coming back in step.
	case errors.Is(err, errStale):
		s.stale = true
		s.r.health.become(Stale, reason(err))
	case judge(err) == expired && s.mayBeElsewhere():
		return s.r.pause(ctx, elsewhereWait()) == nil
	case judge(err) == expired:
		s.lose(ctx, err)
		return false
	case errors.Is(err, errShort):
		if s.short++; s.short >= maxShort {
			s.failed(err)
		}
	default:
		s.failed(err)
	}
	return s.r.pause(ctx, s.patience.wait(err)) == nil
}

// lose ends the stream because history does.
func (s *stream) lose(ctx context.Context, err error) {
	ahead := judge(err) == tooLarge
	why := "the API server no longer has the history: " + reason(err)
	if ahead {
		why = reason(err)
	}
	s.r.lose(s.position, why, ahead)
	s.expire(ctx)
}

// expire tells the reader that the history has ended.
func (s *stream) expire(ctx context.Context) {
	s.send(ctx, watch.Event{Type: watch.Error, Object: &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "history has ended",
	}})
}

func (s *stream) send(ctx context.Context, e watch.Event) bool {
	select {
	case s.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow moves the position behind e, which was passed on.
func (s *stream) follow(e watch.Event) {
	s.r.health.note(func(st *Status) { st.Events++ })
	o, ok := e.Object.(*deltas.Object)
	if !ok {
		return
	}
	// Before the end of initial events ADDED comes in no order; a position taken from it would skip the others.
	if e.Type != watch.Added {
		s.ordered = true
	}
	if s.ordered && o.ResourceVersion != "" {
		s.position = o.ResourceVersion
	}
}
