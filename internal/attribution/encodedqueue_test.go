package attribution

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestEncodedQueueKeepsOrder adds and removes at random, and compares with a list.
func TestEncodedQueueKeepsOrder(t *testing.T) {
	type waiting struct {
		number uint64
		at     waitAddress
	}
	random := rand.New(rand.NewPCG(3, 4))
	p, all := newEncodedQueue(), []waiting{}
	for range 20_000 {
		switch i := random.IntN(len(all) + 1); {
		case len(all) < 50 && random.IntN(3) > 0 || i == len(all):
			w := waiting{1 + random.Uint64N(1000), waitAddress(random.IntN(5))}
			if slices.ContainsFunc(all, func(o waiting) bool { return o.number == w.number }) {
				continue
			}
			p.addRequest(w.number, encodedRequest{at: w.at, identity: w.number})
			all = append(all, w)
		default:
			if got := p.removeRequest(all[i].number); got.identity != all[i].number || got.at != all[i].at {
				t.Fatalf("removed %+v, want %+v", got, all[i])
			}
			all = slices.Delete(all, i, i+1)
		}
		oldest, first := uint64(0), map[waitAddress]uint64{}
		for _, w := range all {
			if oldest == 0 || w.number < oldest {
				oldest = w.number
			}
			if first[w.at] == 0 {
				first[w.at] = w.number
			}
		}
		if got, some := p.oldestNumber(); some != (len(all) > 0) || got != oldest {
			t.Fatalf("oldest %d, want %d", got, oldest)
		}
		for at := range waitAddress(5) {
			if got := p.firstAt(at); got != first[at] {
				t.Fatalf("first at %d: %d, want %d", at, got, first[at])
			}
		}
	}
	for _, w := range all {
		p.removeRequest(w.number)
	}
	if len(p.all)+len(p.queues) != 0 {
		t.Errorf("left over: %d, %d", len(p.all), len(p.queues))
	}
}

// TestEncodedRequestIsOneAllocation holds requests without a change. Each is one object for the garbage collector, and
// together they take no more memory than the estimate.
func TestEncodedRequestIsOneAllocation(t *testing.T) {
	alive := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	j := NewMatcher(Limits{Settle: time.Hour, Window: time.Hour, Bytes: floodBytes})
	before := alive()
	const count = 20_000
	for n := range count {
		j.AddRequest(&Request{Event: floodEvent(n), Origin: "api", Arrived: epoch})
	}
	after := alive()
	if objects := float64(after.HeapObjects-before.HeapObjects) / count; objects > 1.5 {
		t.Errorf("%.1f objects each", objects)
	}
	if held := after.HeapAlloc - before.HeapAlloc; held > uint64(j.requests.bytes) {
		t.Errorf("%d bytes are held, and %d counted", held, j.requests.bytes)
	}
	runtime.KeepAlive(j)
}

// TestChangeDecodesOnlyItsRequests patches one object many times without a change, and then with one.
func TestChangeDecodesOnlyItsRequests(t *testing.T) {
	j := NewMatcher(Limits{Settle: time.Second, Window: time.Hour, Bytes: floodBytes})
	patch := func(n int, version string, from int) {
		j.AddRequest(&Request{Event: audit.Event{
			ID: strconv.Itoa(n), Stage: audit.Complete, Verb: "patch", Replaces: "1", Code: 200, Outcome: audit.Stored, User: "ann", Resource: "configmaps", Name: "db",
			Received: audit.Time(testTime(from).UnixNano()), Done: audit.Time(testTime(from + 1).UnixNano()),
			Answer: audit.Object{UID: "a", ResourceVersion: version},
		}, Origin: "api", Arrived: testTime(from)})
	}
	for n := range 1000 {
		patch(n, "5", 10)
	}
	patch(1000, "6", 90)
	j.AddChange(Change{Offset: 1, Type: event.Updated, Resource: event.Resource{Resource: "configmaps"}, UID: "a", Version: "6", Previous: "5", Observed: testTime(100)})
	j.Resolve(testTime(200))
	if len(j.requests.waiting) != 1 || len(j.requests.encoded.all) != 1000 {
		t.Errorf("%d decoded, %d encoded", len(j.requests.waiting), len(j.requests.encoded.all))
	}
	j.Resolve(testTime(2000))
	if done := j.TakeFindings().Resolved; len(done) != 1 || done[0].By == nil || !done[0].By.Arrived.Equal(testTime(90)) {
		t.Errorf("%+v", done)
	}
	if len(j.requests.waiting) != 0 || len(j.requests.encoded.all) != 1000 {
		t.Errorf("%d decoded, %d encoded", len(j.requests.waiting), len(j.requests.encoded.all))
	}
}
