package serve

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/internal/history"
	store "github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// logBytes bounds the compressed objects of a type in changes that watches and pages can begin behind.
const logBytes = 8 << 20

// change is what happened to an object.
type change struct {
	was, is *object // nil: it did not exist
	version string
}

// log has the newest changes of a type, in the order of their versions.
type log struct {
	changes []change
	first   int    // how many changes are no longer in it
	bytes   int    // of the objects in it
	floor   string // version before the first change
	version string // behind the last one: that of lists
}

// after returns the number of changes up to a version; ok is false if the log does not have that version.
func (l *log) after(version string) (n int, ok bool) {
	for n = len(l.changes); n >= 0; n-- {
		at := l.floor
		if n > 0 {
			at = l.changes[n-1].version
		}
		if order, ordered := resourceversion.Compare(version, at); version == at || ordered && order > 0 {
			return l.first + n, true
		}
	}
	return 0, false
}

// since returns the changes behind the first n; ok is false if the log no longer has all of them.
func (l *log) since(n int) (changes []change, ok bool) {
	if n < l.first {
		return nil, false
	}
	return l.changes[n-l.first:], true
}

// cut ends what watches can follow: what happened before it is not known, or not in order.
func (l *log) cut() {
	l.first, l.changes, l.bytes, l.floor = l.first+len(l.changes)+1, nil, 0, l.version
}

func (l *log) append(c change) {
	order, ordered := resourceversion.Compare(c.version, l.version)
	if ordered && order < 0 {
		l.cut()
		return
	}
	l.changes, l.version, l.bytes = append(l.changes, c), c.version, l.bytes+c.size()
	for l.bytes > logBytes {
		l.bytes, l.floor = l.bytes-l.changes[0].size(), l.changes[0].version
		l.changes, l.first = l.changes[1:], l.first+1
	}
}

func (c *change) size() int { return len(cmp.Or(c.is, c.was).packed) }

// at returns the objects as they were at a version.
func (t *objects) at(version string) ([]*object, bool) {
	n, ok := t.after(version)
	if order, ordered := resourceversion.Compare(version, t.version); !ok || ordered && order > 0 {
		return nil, false
	}
	undone, _ := t.since(n)
	if len(undone) == 0 {
		return t.all, true
	}
	past := slices.Clone(t.all)
	for _, c := range slices.Backward(undone) {
		past = replace(past, c.is, c.was)
	}
	return past, true
}

func (t *objects) expired(version string) *apierrors.StatusError {
	return fail(http.StatusGone, metav1.StatusReasonExpired, fmt.Sprintf("too old resource version: %s: what is served now is known from %s to %s", version, t.floor, t.version))
}

// replace puts an object, or none, into the place of another one, or of none.
func replace(all []*object, was, is *object) []*object {
	i, found := search(all, cmp.Or(is, was).key())
	switch {
	case is != nil && found:
		all[i] = is
	case is != nil:
		all = slices.Insert(all, i, is)
	case found:
		all = slices.Delete(all, i, i+1)
	}
	return all
}

// pace is how the time of a replay passes.
type pace struct {
	origin  time.Time // of the history
	started time.Time
	speed   float64 // seconds of the history in one
}

func (p *pace) now() time.Time {
	passed := min(float64(time.Since(p.started))*p.speed, 1<<62)
	return p.origin.Add(time.Duration(passed))
}

// wait waits until a time of the history, and reports whether ctx has not ended.
func (p *pace) wait(ctx context.Context, until time.Time) bool {
	at := p.started.Add(time.Duration(float64(until.Sub(p.origin)) / p.speed))
	return ratelimit.Sleep(ctx, time.Until(at)) == nil
}

// Replay has a state that is served change as the cluster did, up to a moment, at a speed: seconds of the history in one.
// It returns when that has been reached or ctx has ended, which is no error. It is called once.
func Replay(ctx context.Context, h *history.History, s *State, until history.Moment, speed float64) error {
	return s.play(ctx, history.Replay(ctx, h, s.cluster, s.doubt, s.moment, until), speed)
}

func (s *State) play(ctx context.Context, all iter.Seq2[[]history.Step, error], speed float64) error {
	windows := make(chan []history.Step)
	var failed error
	go func() { // reads ahead
		defer close(windows)
		for steps, err := range all {
			if err != nil {
				failed = err
				return
			}
			select {
			case windows <- steps:
			case <-ctx.Done():
				return
			}
		}
	}()
	for steps := range windows {
		p := s.pace
		if p == nil {
			p = &pace{s.moment.Time, time.Now(), speed}
			if p.origin.IsZero() { // nothing existed
				p.origin = steps[0].Time
			}
		}
		for len(steps) > 0 && p.wait(ctx, steps[0].Time) {
			now := p.now()
			due := max(1, sort.Search(len(steps), func(i int) bool { return steps[i].Time.After(now) }))
			s = s.follow(steps[:due], p)
			clear(steps[:due]) // what was replaced since is no longer held
			steps = steps[due:]
		}
	}
	if ctx.Err() == nil {
		s.follow(nil, nil)
		return failed
	}
	return nil
}

// follow has what happened next served, and returns the state then.
func (s *State) follow(steps []history.Step, p *pace) *State {
	next := *s
	next.types, next.pace, next.moved = slices.Clone(s.types), p, make(chan struct{})
	own := map[string]*objects{}
	for _, step := range steps {
		next.moment = history.Moment{Time: step.Time}
		if step.Row == nil {
			next.know(*step.Doubt, own)
		} else {
			next.apply(step, own)
		}
	}
	next.latest.Store(&next)
	close(s.moved)
	return &next
}

// change returns a type to be changed: a copy, if it is not yet one of this state's own.
func (s *State) change(group, resource string, own map[string]*objects) *objects {
	i := slices.IndexFunc(s.types, func(t *objects) bool { return t.Group == group && t.Resource.Resource == resource })
	if i < 0 {
		return nil
	}
	name := s.types[i].String()
	if own[name] == nil {
		t := *s.types[i]
		t.all = slices.Clone(t.all)
		own[name], s.types[i] = &t, &t
	}
	return own[name]
}

// know takes what is not known from now on. Watches of a type with a part that is no longer unknown, or is now, end.
func (s *State) know(doubt history.Doubt, own map[string]*objects) {
	for _, t := range s.types {
		key := store.Key{Cluster: s.cluster, Group: t.Group, Resource: t.Resource.Resource}
		was, is := s.doubt.About(key).Unknown, doubt.About(key).Unknown
		if slices.EqualFunc(was, is, isSame) {
			continue
		}
		t = s.change(t.Group, t.Resource.Resource, own)
		for _, u := range was {
			if u.To.IsZero() || u.To.After(s.moment.Time) {
				continue // this one is only not of the last moment
			}
			back, _ := resourceversion.Compare(u.ToVersion, u.FromVersion) // with a cluster that was restored
			if order, _ := resourceversion.Compare(u.ToVersion, t.version); order > 0 || back < 0 {
				t.version = u.ToVersion
			}
		}
		t.cut()
	}
	s.doubt = doubt
}

func isSame(a, b *history.Unknown) bool { return a.String() == b.String() }

// apply takes what a row says.
func (s *State) apply(step history.Step, own map[string]*objects) {
	row := step.Row
	if s.cluster == "" { // nothing existed
		s.cluster = row.Cluster
	}
	t := s.change(row.Group, row.Resource, own)
	if t == nil || row.Cluster != s.cluster {
		return
	}
	if row.Name == "" { // a list has ended
		for _, o := range slices.Clone(t.all) {
			if o.sequence < step.Begun && (row.Namespace == "" || row.Namespace == o.namespace) {
				t.replace(o, nil, row.ResourceVersion)
			}
		}
		return
	}
	if was := t.find(row.Namespace, row.Name); was != nil || !row.IsEnd() {
		t.applyState(row, was)
	}
	if t.Resource.Resource == "customresourcedefinitions" {
		resource, group, _ := strings.Cut(row.Name, ".")
		if custom := s.change(group, resource, own); custom != nil {
			custom.describe(t)
		}
	}
}

// applyState takes the state of an object that a row has.
func (t *objects) applyState(row *store.Row, was *object) {
	switch {
	case was != nil && was.sequence >= row.Sequence:
	case row.IsEnd():
		t.replace(was, nil, row.ResourceVersion)
	case was != nil && was.version == row.ResourceVersion:
		was.sequence = row.Sequence
	default:
		if t.ClusterScoped = row.Namespace == ""; row.Version != t.Version {
			t.Version = row.Version
			t.cut()
		}
		t.replace(was, newObject(row), row.ResourceVersion)
	}
}

// replace has an object become another one, or cease to exist.
func (t *objects) replace(was, is *object, version string) {
	t.all = replace(t.all, was, is)
	t.append(change{was, is, version})
}
