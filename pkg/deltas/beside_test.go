package deltas

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestSinkSnapshotIsWhole plays random histories while a snapshot for one sink reads lists that are older or newer than what
// the watch has brought. Whatever a filter drops of the live changes, the sink has each object that existed when the
// snapshot began and still exists, never one version after a newer one, and the digest is that of the records.
func TestSinkSnapshotIsWhole(t *testing.T) {
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 79))
		request := event.SnapshotRequest{Sink: "new", ID: "r"}
		isChosen := func(string) bool { return true }
		if seed%2 == 1 {
			request.Objects = event.EncodeObjectKeys([]string{"ns/o0", "ns/o1", "ns/o2", "ns/never"})
			isChosen = func(name string) bool { return name < "o3" }
		}
		version, state := 0, map[string]*Object{}
		write := func() Event {
			version++
			name := "o" + strconv.Itoa(r.IntN(6))
			before := state[name]
			o := NewObject("ns", name)
			o.UID, o.ResourceVersion, o.Raw, o.ObservedAt = fmt.Sprint("uid-", version), strconv.Itoa(version), []byte("{}"), time.Unix(int64(version), 0)
			switch {
			case before == nil:
				state[name] = o
				return Event{watch.Added, o}
			case r.IntN(3) == 0:
				o.UID = before.UID
				delete(state, name)
				return Event{watch.Deleted, o}
			default:
				o.UID = before.UID
				state[name] = o
				return Event{watch.Modified, o}
			}
		}
		known := NewKnownSet()
		for range r.IntN(20) {
			write()
		}
		existed := map[string]string{}
		for name, o := range state {
			known.Add(o.toKnown())
			existed[name] = o.UID
		}
		tracker := NewTracker(Scope{ID: "pods", Cluster: "c", Resource: event.Resource{Resource: "pods"}}, known, nil, time.Now)
		var stream []*event.Change
		take := func(o event.Observation, err error) {
			if err != nil {
				t.Fatal(err)
			}
			stream = append(stream, o.Changes...)
		}
		begun := version
		take(tracker.StartSnapshot(request, "s", strconv.Itoa(version)), nil)
		var pending []Event // written, and not brought by the watch yet
		watched := func() {
			n := r.IntN(len(pending) + 1)
			if n > 0 {
				take(tracker.ObserveEvents(pending[:n], pending[n-1].Object.ResourceVersion))
				pending = pending[n:]
			}
		}
		for step := 0; ; step++ {
			if missing, _ := tracker.MissingInSnapshot(); missing == 0 {
				break
			}
			if step > 200 {
				t.Fatalf("seed %d: the snapshot does not end", seed)
			}
			var listed []*Object
			for _, o := range state {
				listed = append(listed, o)
			}
			for range r.IntN(3) {
				pending = append(pending, write())
			}
			watched()
			take(tracker.ObserveExisting(listed[:r.IntN(len(listed)+1)], strconv.Itoa(version)))
			watched()
		}
		finished := tracker.FinishSnapshot()
		end := finished.Changes[0].Snapshot
		if partial := request.Objects != ""; (finished.Changes[0].Type == event.PartialEnd) != partial || (stream[0].Type == event.PartialBegin) != partial {
			t.Fatalf("seed %d: framed by %s and %s", seed, stream[0].Type, finished.Changes[0].Type)
		}
		var digest event.Digest
		has, newest, count, absent, ids := map[string]string{}, map[string]int{}, 0, 0, map[string]bool{}
		for _, c := range stream {
			n, _ := strconv.Atoi(c.ResourceVersion)
			if n < newest[c.Name] {
				t.Fatalf("seed %d: %s@%s follows %d", seed, c.Name, c.ResourceVersion, newest[c.Name])
			}
			newest[c.Name] = n
			if ids[c.ID()] && c.Type != event.Watermark {
				t.Fatalf("seed %d: two records are %s", seed, c.ID())
			}
			ids[c.ID()] = true
			switch c.Type {
			case event.Deleted:
				if c.Snapshot != nil {
					if absent++; existed[c.Name] != "" || c.ResourceVersion != strconv.Itoa(begun) || c.ListVersion != c.ResourceVersion || c.OnlySink != "new" || !c.Coalesced || !c.FinalStateUnknown || !isChosen(c.Name) && c.Name != "never" {
						t.Fatalf("seed %d: %+v", seed, c)
					}
				}
				delete(has, c.Name)
			case event.Snapshot:
				if c.Snapshot.ID != "s" || c.OnlySink != "new" || c.After == nil || !isChosen(c.Name) {
					t.Fatalf("seed %d: %+v", seed, c)
				}
				digest.Add(c.Namespace, c.Name, c.UID, c.ResourceVersion)
				has[c.Name] = c.UID
				count++
			}
		}
		for name, uid := range existed {
			if k := known.lookupKey("ns/" + name); k.UID == uid && isChosen(name) && has[name] != uid {
				t.Fatalf("seed %d: the snapshot lacks %s", seed, name)
			}
		}
		if wanted := len(request.ObjectKeys()); wanted > 0 {
			for name := range existed {
				if isChosen(name) {
					wanted--
				}
			}
			if absent != wanted || finished.EndedAbsent != wanted {
				t.Fatalf("seed %d: %d objects are deleted, want %d, and the end has %d", seed, absent, wanted, finished.EndedAbsent)
			}
		}
		if end.Count != count || end.Digest != digest.String() {
			t.Fatalf("seed %d: the end is %+v of %d records", seed, end, count)
		}
	}
}
