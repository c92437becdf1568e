package involved

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

const (
	// patience is how long Events wait for objects that cannot be read.
	patience = 10 * time.Second
	// lagOfKnown and lagOfUnknown are how long an Event waits for what the watch of its objects may still deliver, unless it
	// is further already: for a newer state of an object, and for an object.
	lagOfKnown, lagOfUnknown = 200 * time.Millisecond, time.Second
	lookEvery                = 10 * time.Millisecond
	exactTimeout             = 5 * time.Second
	// maxBytes bounds the texts of one type.
	maxBytes = 64 << 20
	// quietFor is how long a watch with bookmarks may deliver nothing. One that lasts for steadyFor counts as working.
	quietFor, steadyFor = 3 * time.Minute, time.Second
	minRetry, maxRetry  = 200 * time.Millisecond, 15 * time.Second
)

// objectState is what an object has since a version. Its text is what Events get: JSON members with a comma before each.
type objectState struct {
	uid, version, text string
	written            string // when the object was last written as a whole; "?", which is after every time, if that is not known
}

// objects are those of one type, or of one namespace. It is safe for concurrent use.
type objects struct {
	*Index
	endpoint *apiserver.Endpoint
	events   *apiserver.Endpoint // of the Events that name the objects
	textOf   func(*deltas.Object) (string, error)

	mu     sync.Mutex
	byKey  map[string]objectState
	bytes  int
	seen   string    // version up to which everything is known
	broken string    // why objects cannot be read; "" if they can
	since  time.Time // the begin of that
	shared bool      // versions of the Events and of the objects are of one store, and can be compared
	lost   string    // the newest version of which the API server did not have the objects any more
}

// run lists and watches until ctx ends.
func (o *objects) run(ctx context.Context) {
	wait := minRetry
	for ctx.Err() == nil {
		err := o.list(ctx)
		for err == nil {
			began := time.Now()
			if err = o.watch(ctx); time.Since(began) > steadyFor {
				wait = minRetry
				if errors.Is(err, decode.ErrEnd) {
					err = nil
				}
			}
		}
		o.mu.Lock()
		if o.broken == "" {
			o.since = time.Now()
		}
		if o.broken = apiserver.Reason(err); apiserver.Classify(err) == apiserver.Forbidden {
			o.since = time.Time{} // no Event waits for a right
		}
		o.mu.Unlock()
		_ = ratelimit.Sleep(ctx, wait)
		wait = min(2*wait, maxRetry)
	}
}

// list reads what exists.
func (o *objects) list(ctx context.Context) error {
	verify := func(context.Context) error { return nil }
	if o.endpoint.BeginRequest != nil {
		verify = o.endpoint.BeginRequest(o.endpoint.Scope)
	}
	before, err := o.events.Newest(ctx)
	if err != nil {
		return err
	}
	var byKey map[string]objectState
	bytes := 0
	position, _, err := source.ReadScope(ctx, o.cfg.Client, o.endpoint.Scope, "", source.Reading{
		Begin: func(string) error { byKey, bytes = map[string]objectState{}, 0; return nil },
		Visit: func(object *deltas.Object) error {
			s, err := o.stateOf(object, &bytes)
			byKey[object.Key()] = s
			return err
		},
	})
	if err == nil {
		err = verify(ctx)
	}
	if err != nil {
		return err
	}
	after, err := o.events.Newest(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byKey, o.bytes, o.seen, o.broken, o.lost = byKey, bytes, position, "", "1"
	o.shared = !isNewer(before, position) && !isNewer(position, after) // another store counts for itself
	return nil
}

// watch follows one connection from what was seen last.
func (o *objects) watch(ctx context.Context) error {
	c, err := o.endpoint.Watch(ctx, nil, metav1.ListOptions{ResourceVersion: o.seen}) // only this goroutine writes it
	if err != nil {
		return err
	}
	defer c.Stop()
	for bookmarks := false; ; {
		b, err := c.Next(ctx, quietFor)
		if errors.Is(err, apiserver.ErrQuiet) && !bookmarks {
			continue
		}
		if err == nil {
			bookmarks = bookmarks || b.Bookmarks
			err = o.apply(b.Events, b.Position)
		}
		if err != nil {
			return err
		}
	}
}

// apply records changes up to a position. A state that is replaced, or gone, can be read from the store for some minutes.
func (o *objects) apply(events []deltas.Event, position string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		key := e.Object.Key()
		old := o.byKey[key]
		o.bytes -= len(old.text)
		if delete(o.byKey, key); e.Type == watch.Deleted {
			continue
		}
		s, err := o.stateOf(e.Object, &o.bytes)
		if err != nil {
			return err
		}
		if old.uid == s.uid && old.text == s.text {
			s.version = old.version // it is the same since then
		}
		o.byKey[key] = s
	}
	o.seen = cmp.Or(position, o.seen)
	return nil
}

var errFull = errors.New("more of them exist than are kept in memory")

// stateOf returns what is kept of an object, and adds the size of its text to bytes.
func (o *objects) stateOf(object *deltas.Object, bytes *int) (s objectState, err error) {
	if s.text, err = o.textOf(object); err != nil {
		return s, err
	}
	if *bytes += len(s.text); *bytes > maxBytes {
		return s, errFull
	}
	s.uid, s.version = strings.Clone(object.UID), strings.Clone(object.ResourceVersion) // not the text around them
	s.written = cmp.Or(strings.Clone(object.LastWrite()), "?")
	return s, nil
}

// isNewer reports whether a version is newer than another one, or cannot be compared with it.
func isNewer(a, b string) bool {
	order, ordered := resourceversion.Compare(a, b)
	return !ordered || order > 0
}

// The reasons why nothing is known of the object of an Event.
const (
	reasonGone    = "it did not exist, or no longer does"
	reasonWritten = "it was written since, or in that second, and what it had before was not seen"
)

// find returns what the object of an Event had at its time, or why that is not known. It waits for what may still arrive.
// Its error is that of ctx.
func (o *objects) find(ctx context.Context, a *about) (text, reason string, err error) {
	for {
		text, reason, until := o.look(a)
		if time.Until(until) <= 0 {
			if reason == reasonGone || reason == reasonWritten {
				text, reason = o.readAt(ctx, a, reason)
			}
			return text, reason, ctx.Err()
		}
		if err := ratelimit.Sleep(ctx, min(lookEvery, time.Until(until))); err != nil {
			return "", "", err
		}
	}
}

// look is find without waiting: it returns until when a better answer may come.
func (o *objects) look(a *about) (text, reason string, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken != "" {
		return "", o.endpoint.Scope.Resource.String() + ": " + o.broken, o.since.Add(patience)
	}
	key := a.Name
	if o.endpoint.Scope.Namespaced {
		key = a.Namespace + "/" + a.Name
	}
	s, known := o.byKey[key]
	lag := lagOfUnknown
	switch {
	case !known || !a.names(s.uid):
		reason = reasonGone
	case o.shared && !isNewer(s.version, a.version), a.UID != "" && s.written < a.created:
		text, lag = s.text, lagOfKnown
	default:
		reason = reasonWritten
	}
	if !o.shared || isNewer(a.version, o.seen) {
		until = a.read.Add(lag)
	}
	return text, reason, until
}

// readAt asks the API server what an object had in the version of an Event; it has the past of some minutes.
func (o *objects) readAt(ctx context.Context, a *about, unread string) (text, reason string) {
	o.mu.Lock()
	lost := !o.shared || !isNewer(a.version, o.lost)
	o.mu.Unlock()
	if lost {
		return "", unread
	}
	ctx, cancel := context.WithTimeout(ctx, exactTimeout)
	defer cancel()
	namespace := a.Namespace
	if !o.endpoint.Scope.Namespaced {
		namespace = ""
	}
	object, err := o.endpoint.ReadAt(ctx, namespace, a.Name, a.version)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.lost = a.version
		return "", unread
	}
	if object == nil || !a.names(object.UID) || isNewer(object.ResourceVersion, a.version) {
		return "", unread
	}
	if text, err = o.textOf(object); err != nil {
		return "", unread
	}
	return text, ""
}
