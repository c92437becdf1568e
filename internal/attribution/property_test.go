package attribution

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// world is a model of an API server with objects that users write to. truth has the author of each change.
type world struct {
	r        *rand.Rand
	now      int // ms
	version  int
	objects  []*modelObject
	changes  []Change
	requests []*Request
	truth    map[string]string // by uid@version
	nextUID  int
	notes    bool // the admission policy is active
	bare     int  // one request in that many reaches an API server that does not know the policy; 0: none
	skew     time.Duration
}

type modelObject struct {
	uid            string
	version        int
	held, deleting bool
}

const observeDelay = 3 // ms until a change is observed

func (w *world) addRequest(user, verb string, code int, o *modelObject) *Request {
	r := &Request{Event: audit.Event{
		ID: strconv.Itoa(len(w.requests)), Stage: "ResponseComplete", Verb: verb, Code: code, Outcome: audit.Stored, User: user, Resource: "configmaps", Name: o.uid,
		Received: audit.Time(testTime(w.now - 1 - w.r.IntN(2)).UnixNano()), Done: audit.Time(testTime(w.now + 1 + w.r.IntN(3)).UnixNano()),
	}, Origin: "api", Arrived: testTime(w.now + 1)}
	annotated := w.notes && (verb == "update" || verb == "patch" || verb == "delete") && (w.bare == 0 || w.r.IntN(w.bare) > 0)
	if annotated {
		r.Replaces = strconv.Itoa(o.version)
	}
	w.requests = append(w.requests, r)
	return r
}

// writeObject makes a change as this user.
func (w *world) writeObject(o *modelObject, t event.Type, user string, marks bool) {
	previous := ""
	if t != event.Added {
		previous = strconv.Itoa(o.version)
	}
	w.version++
	o.version = w.version
	version := strconv.Itoa(w.version)
	w.changes = append(w.changes, Change{
		Offset: uint64(len(w.changes) + 1), Type: t, Resource: event.Resource{Resource: "configmaps"}, UID: o.uid, Version: version, Previous: previous, Marks: marks, Observed: testTime(w.now + observeDelay),
	})
	w.truth[o.uid+"@"+version] = user
}

func (o *modelObject) identity() audit.Object {
	return audit.Object{UID: o.uid, ResourceVersion: strconv.Itoa(o.version), Deleting: o.deleting, Held: o.held}
}

// playWrite makes one random request of a random user.
func (w *world) playWrite() {
	w.now += 1 + w.r.IntN(4)
	user := fmt.Sprintf("user-%d", w.r.IntN(5))
	if len(w.objects) < 3 {
		w.nextUID++
		o := &modelObject{uid: fmt.Sprintf("u%d", w.nextUID), held: w.r.IntN(3) == 0}
		r := w.addRequest(user, "create", statusCreated, o)
		w.writeObject(o, event.Added, user, false)
		r.Answer = o.identity()
		w.objects = append(w.objects, o)
		return
	}
	i := w.r.IntN(len(w.objects))
	o := w.objects[i]
	gone := false
	switch w.r.IntN(8) {
	case 0, 1: // patch that changes something
		r := w.addRequest(user, "patch", 200, o)
		w.writeObject(o, event.Updated, user, false)
		r.Answer = o.identity()
	case 2: // patch that changes nothing
		r := w.addRequest(user, "patch", 200, o)
		r.Answer = o.identity()
		if r.Replaces != "" {
			r.Unchanged = r.Replaces
			r.Replaces = strconv.Itoa(max(1, o.version-w.r.IntN(2))) // of the first attempt, which may have met a conflict
		}
	case 3: // update with a version precondition
		r := w.addRequest(user, "update", 200, o)
		r.ResourceVersion = strconv.Itoa(o.version)
		w.writeObject(o, event.Updated, user, false)
		r.Answer = o.identity()
	case 4: // the same, without a change
		r := w.addRequest(user, "update", 200, o)
		r.ResourceVersion, r.Answer = strconv.Itoa(o.version), o.identity()
	case 5:
		gone = w.deleteObject(o, user)
	case 6: // release of the finalizers
		r := w.addRequest(user, "patch", 200, o)
		switch {
		case o.held && o.deleting:
			before := o.version
			o.held = false
			w.writeObject(o, event.Deleted, user, false)
			r.Answer = audit.Object{UID: o.uid, ResourceVersion: strconv.Itoa(before), Deleting: true}
			gone = true
		default:
			r.Answer, r.Unchanged = o.identity(), r.Replaces
		}
	case 7: // deletecollection of everything without finalizers
		r := w.addRequest(user, "deletecollection", 200, o)
		for _, o := range w.objects {
			if !o.held {
				r.Items = append(r.Items, o.identity())
				w.writeObject(o, event.Deleted, user, false)
			}
		}
		w.objects = slices.DeleteFunc(w.objects, func(o *modelObject) bool { return !o.held })
		return
	}
	if gone {
		w.objects = slices.Delete(w.objects, i, i+1)
	}
}

func (w *world) deleteObject(o *modelObject, user string) (gone bool) {
	r := w.addRequest(user, "delete", 200, o)
	switch {
	case !o.held:
		w.writeObject(o, event.Deleted, user, false)
		r.DeletedUID = o.uid
		return true
	case !o.deleting:
		o.deleting = true
		w.writeObject(o, event.Updated, user, true)
	default:
		r.Unchanged = r.Replaces
	}
	r.Answer = o.identity()
	return false
}

// matchAll adds the changes and the disturbed requests to a matcher and counts the authors.
func (w *world) matchAll(t *testing.T, events []*Request) (named, wrong int) {
	t.Helper()
	j := NewMatcher(Limits{Settle: time.Second, Window: time.Minute, Skew: w.skew, Bytes: 64 << 20})
	concluded := 0
	check := func() {
		for _, c := range j.TakeFindings().Resolved {
			concluded++
			if c.By == nil {
				continue
			}
			named++
			if w.truth[c.UID+"@"+c.Version] != c.By.User {
				wrong++
				t.Errorf("%s %s@%s named %s, was %s", c.Type, c.UID, c.Version, c.By.User, w.truth[c.UID+"@"+c.Version])
			}
		}
	}
	changes := w.changes
	for len(changes)+len(events) > 0 { // interleaved at random
		if len(events) == 0 || len(changes) > 0 && w.r.IntN(len(changes)+len(events)) < len(changes) {
			j.AddChange(changes[0])
			changes = changes[1:]
		} else {
			again := *events[0]
			again.Number = 0
			j.AddRequest(&again)
			events = events[1:]
		}
	}
	for _, after := range []time.Duration{0, 2 * time.Second, 2 * time.Minute} {
		j.Resolve(testTime(w.now).Add(after))
		check()
	}
	if concluded != len(w.changes) {
		t.Errorf("%d of %d changes resolved", concluded, len(w.changes))
	}
	if len(j.changes.byUID)+len(j.requests.claims)+len(j.requests.known)+j.waitingBytes() != 0 {
		t.Errorf("left over: %d objects, %d claimed, %d requests, %d bytes", len(j.changes.byUID), len(j.requests.claims), len(j.requests.known), j.waitingBytes())
	}
	return named, wrong
}

// TestDisturbedEventsNeverNameWrongAuthor plays random histories of five users that contend for three objects. Events are
// lost, doubled, out of order, or have the same audit ID. In half of the histories one of several API servers does not know
// the admission policy.
func TestDisturbedEventsNeverNameWrongAuthor(t *testing.T) {
	for what, disturb := range map[string]func(r *rand.Rand, all []*Request) []*Request{
		"nothing":      func(_ *rand.Rand, all []*Request) []*Request { return all },
		"lost a tenth": func(r *rand.Rand, all []*Request) []*Request { return loseOneIn(r, all, 10) },
		"lost half":    func(r *rand.Rand, all []*Request) []*Request { return loseOneIn(r, all, 2) },
		"doubled":      func(_ *rand.Rand, all []*Request) []*Request { return append(slices.Clone(all), all...) },
		"reordered": func(r *rand.Rand, all []*Request) []*Request {
			all = slices.Clone(all)
			r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
			return all
		},
		"one audit id": func(_ *rand.Rand, all []*Request) []*Request {
			for _, r := range all {
				r.ID = "same"
			}
			return all
		},
	} {
		t.Run(what, func(t *testing.T) {
			total, named := 0, 0
			for seed := range uint64(30) {
				w := &world{r: rand.New(rand.NewPCG(seed, 1)), truth: map[string]string{}, notes: true, bare: []int{0, 3}[seed%2]}
				for range 300 {
					w.playWrite()
				}
				n, _ := w.matchAll(t, disturb(w.r, w.requests))
				total, named = total+len(w.changes), named+n
			}
			t.Logf("%d of %d changes named", named, total)
		})
	}
}

func loseOneIn(r *rand.Rand, all []*Request, every int) []*Request {
	return slices.DeleteFunc(slices.Clone(all), func(*Request) bool { return r.IntN(every) == 0 })
}

// TestMemoryBoundsHold floods a matcher with changes and requests that do not match.
func TestMemoryBoundsHold(t *testing.T) {
	j := NewMatcher(Limits{Settle: time.Hour, Window: time.Hour, Bytes: 1 << 20})
	for i := range 20_000 {
		uid := strconv.Itoa(i)
		j.AddChange(Change{Offset: uint64(i + 1), Type: event.Updated, UID: uid, Version: "1", Observed: epoch})
		j.AddRequest(&Request{Event: audit.Event{ID: uid, Stage: "ResponseComplete", Verb: "patch", Code: 200, Outcome: audit.Stored, Resource: "pods",
			Answer: audit.Object{UID: "x" + uid, ResourceVersion: "1"}}, Arrived: epoch})
	}
	if j.changes.bytes > 1<<19 || j.requests.bytes > 1<<19 || len(j.changes.byUID)+len(j.requests.claims) > 4000 {
		t.Errorf("%d bytes of changes, %d of requests, %d objects", j.changes.bytes, j.requests.bytes, len(j.changes.byUID))
	}
	found := j.TakeFindings()
	if len(found.Resolved) < 18_000 || len(found.Drop) < 18_000 || j.requests.evicted == 0 {
		t.Errorf("%d resolved, %d dropped, %d evicted", len(found.Resolved), len(found.Drop), j.requests.evicted)
	}
	for _, c := range found.Resolved {
		if c.Reason != Evicted {
			t.Fatalf("unresolved: %s", c.Reason)
		}
	}
}

// TestLateEventsNeverNameWrongAuthor adds all changes first, and all events five minutes later. Only what an answer proves
// alone is named.
func TestLateEventsNeverNameWrongAuthor(t *testing.T) {
	const late = 5 * time.Minute
	named, total := 0, 0
	for seed := range uint64(10) {
		w := &world{r: rand.New(rand.NewPCG(seed, 2)), truth: map[string]string{}, notes: true}
		for range 300 {
			w.playWrite()
		}
		j := NewMatcher(Limits{Settle: time.Second, Window: 2 * late, Bytes: 64 << 20})
		for _, c := range w.changes {
			j.AddChange(c)
		}
		j.Resolve(testTime(w.now).Add(late - time.Minute))
		if found := j.TakeFindings(); len(found.Resolved) > 0 {
			t.Fatalf("%d changes were resolved at once", len(found.Resolved))
		}
		for _, r := range w.requests {
			again := *r
			again.Arrived = again.Arrived.Add(late)
			j.AddRequest(&again)
		}
		j.Resolve(testTime(w.now).Add(late + 2*time.Second))
		j.Resolve(testTime(w.now).Add(3 * late))
		for _, c := range j.TakeFindings().Resolved {
			total++
			if c.By == nil {
				continue
			}
			if named++; w.truth[c.UID+"@"+c.Version] != c.By.User {
				t.Errorf("%s %s@%s named %s, was %s", c.Type, c.UID, c.Version, c.By.User, w.truth[c.UID+"@"+c.Version])
			}
		}
	}
	if t.Logf("%d of %d changes named", named, total); named < total/4 {
		t.Error("too few are named")
	}
}
