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

// podWorld is a model of API servers, with clocks of their own, on which users create, bind, evict and delete pods of the
// same few names. Bindings and evictions have only the name.
type podWorld struct {
	world
	clocks []int // ms that each API server is ahead
	pods   map[string]*modelPod
	byName int // changes that bindings and evictions made
	apart  int // ms between an eviction and another one of the same pod
}

type modelPod struct {
	uid, version   string
	created        time.Time // as objectState has it
	bound, evicted bool
	evictedAt      int
}

func newPodWorld(seed uint64, skew time.Duration, clocks []int) *podWorld {
	return &podWorld{
		world: world{r: rand.New(rand.NewPCG(seed, 2)), truth: map[string]string{}, skew: skew, now: 10_000}, clocks: clocks, pods: map[string]*modelPod{},
	}
}

func (w *podWorld) playWrite() {
	w.now += 1 + w.r.IntN([]int{5, 50, 1500}[w.r.IntN(3)])
	user, name, server := fmt.Sprintf("user-%d", w.r.IntN(5)), fmt.Sprintf("pod-%d", w.r.IntN(2)), w.r.IntN(len(w.clocks))
	pod, found := w.pods[name]
	switch action := w.r.IntN(8); {
	case !found:
		w.nextUID++
		at := testTime(w.now + w.clocks[server])
		pod = &modelPod{uid: fmt.Sprintf("u%d", w.nextUID), created: at.Truncate(time.Second).Add(creationPrecision)}
		w.pods[name] = pod
		r := w.request(user, "create", statusCreated, name, server)
		w.writePod(pod, name, event.Added, user, false)
		r.Answer = audit.Object{UID: pod.uid, ResourceVersion: pod.version}
	case action < 3 && !pod.bound:
		w.request(user, "create", statusCreated, name, server).Subresource = "binding"
		pod.bound = true
		w.writePod(pod, name, event.Updated, user, false)
		w.byName++
	case action < 6 && (!pod.evicted || w.now > pod.evictedAt+w.apart): // another eviction of the pod writes nothing
		w.request(user, "create", statusCreated, name, server).Subresource = "eviction"
		if !pod.evicted {
			w.evict(pod, name, user)
		}
	default:
		w.request(user, "delete", 200, name, server).DeletedUID = pod.uid
		w.writePod(pod, name, event.Deleted, user, false)
		delete(w.pods, name)
	}
}

// evict makes the changes of an eviction. Some pods wait for their grace period afterwards.
func (w *podWorld) evict(pod *modelPod, name, user string) {
	pod.evicted, pod.evictedAt = true, w.now
	w.writePod(pod, name, event.Updated, user, false)
	w.writePod(pod, name, event.Updated, user, true)
	w.byName += 2
	if w.r.IntN(2) == 0 {
		w.changes[len(w.changes)-1].deletable = true
		w.writePod(pod, name, event.Deleted, user, false)
		w.byName++
		delete(w.pods, name)
	}
}

func (w *podWorld) request(user, verb string, code int, name string, server int) *Request {
	from, to := w.now-1-w.r.IntN(2)+w.clocks[server], w.now+1+w.r.IntN(3)+w.clocks[server]
	r := &Request{Event: audit.Event{
		ID: strconv.Itoa(len(w.requests)), Stage: "ResponseComplete", Verb: verb, Code: code, Outcome: audit.Stored, User: user, Resource: "pods", Name: name,
		Received: audit.Time(testTime(from).UnixNano()), Done: audit.Time(testTime(to).UnixNano()),
	}, Origin: fmt.Sprintf("api-%d", server), Arrived: testTime(w.now + 1)}
	w.requests = append(w.requests, r)
	w.now += 4 // requests do not overlap
	return r
}

func (w *podWorld) writePod(pod *modelPod, name string, t event.Type, user string, marks bool) {
	w.version++
	previous := pod.version
	pod.version = strconv.Itoa(w.version)
	w.changes = append(w.changes, Change{
		Offset: uint64(len(w.changes) + 1), Type: t, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, UID: pod.uid, Name: name,
		Version: pod.version, Previous: previous, Marks: marks, Observed: testTime(w.now + observeDelay), hasState: true,
		objectState: objectState{bound: pod.bound, evicted: pod.evicted, deleting: marks, created: pod.created},
	})
	w.truth[pod.uid+"@"+pod.version] = user
}

// TestRequestsByNameNeverNameWrongAuthor plays random histories in which names pass from pod to pod within milliseconds,
// with one API server and with three whose clocks differ. Events are lost, doubled and out of order. With all events of one
// API server nearly every author is named. If the event of an eviction is lost, another one of the same pod within
// Limits.Skew is taken for it: docs/audit-trail.md states this limit.
func TestRequestsByNameNeverNameWrongAuthor(t *testing.T) {
	shuffle := func(r *rand.Rand, all []*Request) {
		r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	}
	for _, clocks := range [][]int{{0}, {400}, {0, 900, -900}} {
		for _, lose := range []int{0, 10, 2} {
			t.Run(fmt.Sprintf("clocks=%v,lost=1/%d", clocks, lose), func(t *testing.T) {
				total, named, byName := 0, 0, 0
				for seed := range uint64(30) {
					w := newPodWorld(seed, time.Second, clocks)
					if lose > 0 {
						w.apart = 2000 // the skew, and the greatest difference of the clocks
					}
					for range 200 {
						w.playWrite()
					}
					events := slices.Clone(w.requests)
					if lose > 0 {
						events = loseOneIn(w.r, append(events, events...), lose)
						shuffle(w.r, events)
					}
					n, _ := w.matchAll(t, events)
					total, named, byName = total+len(w.changes), named+n, byName+w.byName
				}
				t.Logf("%d of %d changes named, %d by requests that have only the name", named, total, byName)
				if lose == 0 && len(clocks) == 1 && named < total*97/100 {
					t.Errorf("%d of %d changes named", named, total)
				}
			})
		}
	}
}
