package involved

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

const (
	// patience is how long Events wait for objects that cannot be read.
	patience = 10 * time.Second
	// lagOfKnown and lagOfUnknown are how long after it was read an Event waits for what the watch of its objects may still
	// deliver, unless that is further already: for a newer state of an object, and for an object.
	lagOfKnown, lagOfUnknown = 200 * time.Millisecond, time.Second
	// keptFor and maxPast bound the states that are over, of objects that are deleted too.
	keptFor, maxPast = 5 * time.Minute, 10_000
	// maxBytes bounds the texts of one type.
	maxBytes = 64 << 20
	pageSize = 500
	// quietFor is how long a watch with bookmarks may deliver nothing.
	quietFor = 3 * time.Minute
	// steadyAfter is how long a watch must last to count as working.
	steadyAfter        = time.Second
	exactTimeout       = 5 * time.Second
	minRetry, maxRetry = 200 * time.Millisecond, 15 * time.Second
)

// members are the metadata of an object that Events get, as members of a JSON object with a comma before each. They share one
// string.
type members struct{ labels, annotations, owner string }

func (m members) size() int { return len(m.labels) + len(m.annotations) + len(m.owner) }

// objectState is what an object had from one version on.
type objectState struct {
	members
	uid, version string
	written      string // when the object was last written as a whole; "?", which is after every time, if that is not known
	gone, full   bool   // the object was deleted; its members do not fit into memory
}

// objects are those of one type, or of one namespace. It is safe for concurrent use.
type objects struct {
	resource event.Resource
	endpoint *apiserver.Endpoint
	events   *apiserver.Endpoint // of the Events that name the objects
	members  func(*deltas.Object) (members, error)

	mu     sync.Mutex
	byKey  map[string][]objectState // the newest state is the last
	past   []pastState
	bytes  int
	seen   string        // version up to which everything is known
	broken string        // why objects cannot be read; "" if they can
	since  time.Time     // the begin of that
	shared bool          // versions of the Events and of the objects are of one store, and can be compared
	lost   string        // the newest version of which the API server did not have the objects any more
	moved  chan struct{} // closed when any of it changes; nil if nobody waits
}

// pastState is that the first state of an object is over.
type pastState struct {
	key string
	at  time.Time
}

func newObjects(e, events *apiserver.Endpoint, read func(*deltas.Object) (members, error)) *objects {
	return &objects{
		resource: e.Scope.Resource, endpoint: e, events: events, members: read, byKey: map[string][]objectState{},
		since: time.Now(), broken: "they are still being read",
	}
}

// run lists and watches until ctx ends.
func (o *objects) run(ctx context.Context) {
	wait := minRetry
	for {
		err := o.list(ctx)
		for err == nil {
			began := time.Now()
			if err = o.watch(ctx); time.Since(began) > steadyAfter {
				wait = minRetry
				if errors.Is(err, decode.ErrEnd) {
					err = nil
				}
			}
		}
		o.update(func() {
			if o.broken == "" {
				o.since = time.Now()
			}
			if o.broken = apiserver.Reason(err); apiserver.Classify(err) == apiserver.Forbidden {
				o.since = time.Time{} // no Event waits for a right
			}
		})
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			wait = min(2*wait, maxRetry)
		}
	}
}

// update changes what is known, and wakes those that wait for it.
func (o *objects) update(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
	if o.moved != nil {
		close(o.moved)
		o.moved = nil
	}
}

// list reads what exists. What an object had before is given up if it has something else: what it had in between was not seen.
func (o *objects) list(ctx context.Context) error {
	byKey, position, bytes := map[string][]objectState{}, "", 0
	before, err := o.events.Newest(ctx)
	if err != nil {
		return err
	}
	options := metav1.ListOptions{Limit: pageSize}
	if !o.endpoint.Ways.Has(apiserver.Pages) {
		options.Limit = 0
	}
	for {
		meta, err := o.endpoint.List(ctx, nil, options, nil, func(object *deltas.Object) error {
			s := o.stateOf(object, bytes)
			if before := o.newest(object.Key()); before.uid == s.uid && before.members == s.members {
				s.members, s.version = before.members, before.version
			}
			bytes += s.size()
			byKey[object.Key()] = []objectState{s}
			return nil
		})
		if options.Limit > 0 && position == "" && apiserver.IsRefusal(err) {
			options.Limit = 0
			continue
		}
		if err != nil {
			return err
		}
		if position == "" {
			position = meta.ResourceVersion
		}
		if options.Continue = meta.Continue; meta.Continue == "" {
			break
		}
	}
	if !apiserver.IsPosition(position) {
		return fmt.Errorf("the API server lists them at a resourceVersion (%q) that cannot be watched from", position)
	}
	after, err := o.events.Newest(ctx)
	if err != nil {
		return err
	}
	shared := !isNewer(before, position) && !isNewer(position, after) // by chance with another store, which counts for itself
	o.update(func() {
		o.byKey, o.past, o.bytes, o.seen, o.broken, o.shared, o.lost = byKey, nil, bytes, position, "", shared, ""
	})
	return nil
}

// newest returns the last known state of an object.
func (o *objects) newest(key string) objectState {
	o.mu.Lock()
	defer o.mu.Unlock()
	if states := o.byKey[key]; len(states) > 0 {
		return states[len(states)-1]
	}
	return objectState{}
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
		if err != nil {
			return err
		}
		bookmarks = bookmarks || b.Bookmarks
		o.update(func() {
			for _, e := range b.Events {
				o.apply(e)
			}
			if b.Position != "" {
				o.seen = b.Position
			}
			o.forgetPast()
		})
	}
}

// apply records a change.
func (o *objects) apply(e deltas.Event) {
	key, s := e.Object.Key(), o.stateOf(e.Object, o.bytes)
	states := o.byKey[key]
	last := len(states) - 1
	switch {
	case e.Type == watch.Deleted && last >= 0:
		states[last].gone = true
		o.past = append(o.past, pastState{key, time.Now()})
	case e.Type == watch.Deleted:
	case last >= 0 && states[last].uid == s.uid && states[last].members == s.members && !states[last].gone:
		states[last].written = s.written // the state is the same, and so is the version that it has been known from
	default:
		if last >= 0 && !states[last].gone {
			o.past = append(o.past, pastState{key, time.Now()})
		}
		o.bytes += s.size()
		o.byKey[key] = append(states, s)
	}
}

// forgetPast forgets states that are over for long, and those beyond the bound. Requires o.mu.
func (o *objects) forgetPast() {
	for len(o.past) > maxPast || len(o.past) > 0 && time.Since(o.past[0].at) > keptFor {
		key := o.past[0].key
		states := o.byKey[key]
		o.past, o.bytes = o.past[1:], o.bytes-states[0].size()
		states[0] = objectState{} // the slice keeps its memory until it grows
		if o.byKey[key] = states[1:]; len(states) == 1 {
			delete(o.byKey, key)
		}
	}
}

// stateOf returns what is kept of an object if the texts of others have so many bytes.
func (o *objects) stateOf(object *deltas.Object, bytes int) objectState {
	s := objectState{uid: strings.Clone(object.UID), version: strings.Clone(object.ResourceVersion)} // not the text around them
	var err error
	s.members, err = o.members(object)
	if s.full = err != nil || bytes+s.size() > maxBytes; s.full {
		s.members = members{}
	}
	s.written = cmp.Or(strings.Clone(object.LastWrite()), "?")
	return s
}

// The reasons why nothing is known of the object of an Event.
const (
	reasonGone    = "it does not exist, or no longer does"
	reasonWritten = "it was written since, or in that second, and what it had before was not seen"
	reasonFull    = "its metadata cannot be read, or more of its kind exist than are kept in memory"
)

// isNewer reports whether a version is newer than another one, or cannot be compared with it.
func isNewer(a, b string) bool {
	order, ordered := resourceversion.Compare(a, b)
	return !ordered || order > 0
}

// find returns what the object of an Event had at its time, or why that is not known. It waits for what may still arrive. Its
// error is that of ctx.
func (o *objects) find(ctx context.Context, a *about) (m members, reason string, err error) {
	for {
		o.mu.Lock()
		s, reason, wait := o.look(a)
		if wait > 0 && o.moved == nil {
			o.moved = make(chan struct{})
		}
		moved, exact := o.moved, (reason == reasonGone || reason == reasonWritten) && o.shared && isNewer(a.version, cmp.Or(o.lost, "1"))
		o.mu.Unlock()
		if wait <= 0 && exact {
			if m, found := o.readAt(ctx, a); found {
				return m, "", nil
			}
		}
		if wait <= 0 {
			return s.members, reason, ctx.Err()
		}
		late := time.NewTimer(wait)
		select {
		case <-moved:
		case <-late.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if late.Stop(); err != nil {
			return members{}, "", err
		}
	}
}

// look is find without waiting: it returns how long a better answer may still come. Requires o.mu.
func (o *objects) look(a *about) (s objectState, reason string, wait time.Duration) {
	if o.broken != "" {
		return s, o.resource.String() + ": " + o.broken, time.Until(o.since.Add(patience))
	}
	key := a.name
	if o.endpoint.Scope.Namespaced {
		key = a.namespace + "/" + a.name
	}
	states := o.byKey[key]
	find := func(had func(objectState) bool) bool {
		for _, one := range slices.Backward(states) {
			if s = one; a.names(one.uid) && had(one) {
				return true
			}
		}
		s = objectState{}
		return false
	}
	lag := lagOfKnown
	switch {
	case find(func(one objectState) bool { return o.shared && !isNewer(one.version, a.version) }):
	case find(func(one objectState) bool { return a.uid != "" && one.written < a.created }):
	case find(func(objectState) bool { return true }):
		lag, reason = lagOfUnknown, reasonWritten
	default:
		lag, reason = lagOfUnknown, reasonGone
	}
	if s.full {
		reason = reasonFull
	}
	if !o.shared || isNewer(a.version, o.seen) {
		wait = time.Until(a.read.Add(lag))
	}
	return s, reason, wait
}

// readAt asks the API server what an object had in the version of an Event. It has the past of some minutes, and of objects that
// were deleted in them.
func (o *objects) readAt(ctx context.Context, a *about) (m members, found bool) {
	ctx, cancel := context.WithTimeout(ctx, exactTimeout)
	defer cancel()
	namespace := ""
	if o.endpoint.Scope.Namespaced {
		namespace = a.namespace
	}
	object, err := o.endpoint.ReadAt(ctx, namespace, a.name, a.version)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.lost = a.version
		return m, false
	}
	if object == nil || !a.names(object.UID) || isNewer(object.ResourceVersion, a.version) {
		return m, false
	}
	s := o.stateOf(object, 0)
	return s.members, !s.full
}
