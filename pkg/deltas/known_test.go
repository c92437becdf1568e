package deltas

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func knownPod(name, rv string) event.Known {
	return event.Known{Key: "ns/" + name, UID: "uid-of-" + name, ResourceVersion: rv, Summary: "s"}
}

func TestKnownSetKeepsTheNewestVersion(t *testing.T) {
	s := NewKnownSet()
	s.Add(knownPod("a", "1"))
	s.Add(knownPod("a", "2"))
	s.replaceOrRemove(knownPod("b", "3"))
	s.replaceOrRemove(knownPod("b", "4"))
	for _, want := range []event.Known{knownPod("a", "2"), knownPod("b", "4"), {Key: "ns/unknown"}} {
		if got := s.lookupKey(want.Key); got != want {
			t.Errorf("known is %+v, want %+v", got, want)
		}
	}
	s.replaceOrRemove(event.Known{Key: "ns/a"})
	s.replaceOrRemove(event.Known{Key: "ns/unknown"})
	if got := s.lookupKey("ns/a"); got.UID != "" || s.Len() != 1 {
		t.Errorf("%+v is known, one of %d, after its removal", got, s.Len())
	}
}

func TestUnseenKeysAreThoseNotSeenInThisPass(t *testing.T) {
	s := NewKnownSet()
	for _, name := range []string{"seen", "replaced", "missing", "removed"} {
		s.Add(knownPod(name, "1"))
	}
	unseen := func() []string { return slices.Sorted(slices.Values(s.unseenKeys(100))) }
	see := func() {
		s.markSeen("ns/seen")
		s.markSeen("ns/unknown")
		s.replaceOrRemove(knownPod("replaced", "2"))
		s.replaceOrRemove(knownPod("new", "3"))
		s.replaceOrRemove(event.Known{Key: "ns/removed"})
	}
	s.startListPass()
	if got := s.unseenKeys(2); len(got) != 2 {
		t.Errorf("two of the unseen are %q", got)
	}
	see()
	if got, want := unseen(), []string{"ns/missing"}; !slices.Equal(got, want) {
		t.Errorf("the list lacks %q, want %q", got, want)
	}
	s.startListPass() // the list failed
	if got, want := unseen(), []string{"ns/missing", "ns/new", "ns/replaced", "ns/seen"}; !slices.Equal(got, want) {
		t.Errorf("the next list lacks %q, want %q", got, want)
	}
	see()
	if got, want := unseen(), []string{"ns/missing"}; !slices.Equal(got, want) {
		t.Errorf("the next list lacks %q, want %q", got, want)
	}
}

func TestDigestIsThatOfTheSnapshotEndRecord(t *testing.T) {
	s := NewKnownSet()
	if got, want := digestOf(s), new(event.Digest).String(); got != want {
		t.Errorf("digest of nothing is %s, want %s", got, want)
	}
	s.Add(knownPod("a", "1"))
	s.Add(event.Known{Key: "node", UID: "u2", ResourceVersion: "2"}) // cluster-scoped
	var want event.Digest
	want.Add("", "node", "u2", "2")
	want.Add("ns", "a", "uid-of-a", "1")
	if got := digestOf(s); got != want.String() {
		t.Errorf("digest is %s, want %s", got, want.String())
	}
}

func digestOf(s *KnownSet) string {
	all := s.currentSum()
	return all.digest.String()
}

// TestTheKeptSumIsThatOfTheObjects compares a sum that is kept with one of all objects, after each of many random steps.
func TestTheKeptSumIsThatOfTheObjects(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	kept := NewKnownSet()
	kept.Add(knownPod("loaded", "1"))
	kept.keepSum()
	for step := range 5000 {
		k := knownPod(fmt.Sprint("o", r.IntN(30)), fmt.Sprint(step))
		switch r.IntN(6) {
		case 0:
			k = event.Known{Key: k.Key}
		case 1: // known to some sinks only
			k = event.Known{Key: k.Key, EmittedElsewhere: event.AppendEmittedVersion("", event.EmittedVersion{UID: "u", ResourceVersion: "1"})}
		}
		kept.replaceOrRemove(k)
		fresh := NewKnownSet()
		for key, entry := range kept.objects {
			fresh.Add(entry.decodeKnown(key))
		}
		if got, want := kept.currentSum(), fresh.currentSum(); got != want {
			t.Fatalf("step %d: the kept sum is %+v, that of the objects %+v", step, got, want)
		}
	}
}

// TestKnownSetPinsNoLargerStrings: the strings of an object are substrings of a larger buffer, which the set must not keep
// alive.
func TestKnownSetPinsNoLargerStrings(t *testing.T) {
	const objects, size = 100, 1 << 16
	text := func(i int) string { return fmt.Sprintf("name-%05d", i) + strings.Repeat("x", size) }
	known := func(i int, rv string) event.Known {
		name := text(i)[:10]
		return event.Known{Key: name, UID: name, ResourceVersion: rv, Summary: name}
	}
	for what, do := range map[string]func(*KnownSet, int){
		"loaded":  func(s *KnownSet, i int) { s.Add(known(i, "1")) },
		"new":     func(s *KnownSet, i int) { s.replaceOrRemove(known(i, "1")) },
		"updated": func(s *KnownSet, i int) { s.Add(known(i, "1")); s.replaceOrRemove(known(i, "2")) },
		"seen":    func(s *KnownSet, i int) { s.Add(known(i, "1")); s.startListPass(); s.markSeen(known(i, "1").Key) },
	} {
		before := heapBytes()
		s := NewKnownSet()
		for i := range objects {
			do(s, i)
		}
		if kept := int64(heapBytes()) - int64(before); kept > objects*size/4 {
			t.Errorf("%s: %d objects keep %d KiB", what, objects, kept>>10)
		}
		runtime.KeepAlive(s)
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func FuzzKnownEncodingRoundTrips(f *testing.F) {
	f.Add("6f1d3c9e-8a57-4f0e-9d0b-3c5a7e2b1f44", "123456789", "summary")
	f.Add("6F1D3C9E-8A57-4F0E-9D0B-3C5A7E2B1F44", "0123", "")
	f.Add("6f1d3c9e-8a57-4f0e-9d0b3c5a7e2b1f44--", "18446744073709551616", "\x00")
	f.Add("", "", "")
	f.Add(strings.Repeat("u", 300), "-1", strings.Repeat("s", 300))
	f.Fuzz(func(t *testing.T, uid, rv, summary string) {
		k := event.Known{Key: "k", UID: uid, ResourceVersion: rv, Summary: summary}
		if got := encodeKnown(k).decodeKnown("k"); got != k {
			t.Errorf("%+v came back as %+v", k, got)
		}
	})
}
