package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// works is a process that works and has delivered everything.
func works(t *testing.T, w *world, p *process) *process {
	t.Helper()
	t.Cleanup(p.end)
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	p.settle()
	return p
}

// some lets n things happen, delivered by p unless it is nil.
func (w *world) some(n int, p *process) {
	for range n {
		w.cluster.change()
	}
	if p != nil {
		p.settle()
	}
}

func refused(err error) string {
	var r *RefusedError
	if !errors.As(err, &r) {
		return ""
	}
	return r.Reason
}

func TestAStateOfAnotherLeaseClusterOrFormatTurnsNobodyAway(t *testing.T) {
	w := newWorld(t, 1, false)
	p := works(t, w, w.start(nil))
	other := w.start(nil)
	t.Cleanup(other.end)
	other.keeper.opts.Lease = "ns/h"
	if _, err := other.keeper.TakeOver(t.Context(), Takeover{}); !strings.Contains(refused(err), "the Lease ns/g") {
		t.Errorf("another Lease: %v", err)
	}
	other.keeper.opts.Lease = "" // as where an election is added or taken away
	if err := p.journal.RememberCluster(t.Context(), "here"); err != nil {
		t.Fatal(err)
	}
	w.some(3, p)
	if _, err := other.keeper.TakeOver(t.Context(), Takeover{Cluster: "there"}); !strings.Contains(refused(err), "of the cluster here") {
		t.Errorf("another cluster: %v", err)
	}
	newer := append([]byte{Version + 1}, "whatever it holds"...)
	if err := p.keeper.put(t.Context(), []sinks.StateEntry{{Key: []byte{keyMeta}, Value: newer}}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.keeper.TakeOver(t.Context(), Takeover{}); !strings.Contains(refused(err), "newer exporter") {
		t.Errorf("a newer format: %v", err)
	}
	w.some(3, p) // it still works
	if p.deposed {
		t.Error("the process that works was turned away")
	}
}

// TestALaneThatIsNotedWhileSinksAreFencedIsFencedToo lets a process go on until the very claim of the next one, which fences
// the sinks meanwhile.
func TestALaneThatIsNotedWhileSinksAreFencedIsFencedToo(t *testing.T) {
	w := newWorld(t, 9, false)
	p := works(t, w, w.start(nil))
	w.some(30, p)
	epoch, other := w.topics["first"].epoch, sinks.Lane("first/other")
	for p.journal.Newest() == p.pipes["first"].low { // until there is a change that no sink has
		w.cluster.change()
		for _, name := range slices.Sorted(maps.Keys(p.scopes)) {
			p.watch(name)
		}
		p.flush()
	}
	records, err := p.journal.Read(t.Context(), p.pipes["first"].low)
	if err != nil {
		t.Fatal(err)
	}
	w.bus.claim = func() {
		w.topics["first"].awaitFence(epoch)
		if !p.publish(p.sinks["first"], other, records[0]) {
			t.Error("the lane, which nobody knows, was fenced")
		}
	}
	next := works(t, w, w.start(nil))
	w.bus.claim = nil
	_, err = p.sinks["first"].Publish(t.Context(), other, nil)
	var deposed *sinks.DeposedError
	if !errors.As(err, &deposed) {
		t.Errorf("the lane that was noted at the last moment: %v; want a DeposedError", err)
	}
	w.some(20, next)
	w.judge("second", true)
	told := map[string]bool{}
	for lane, messages := range w.topics["first"].all() {
		for _, m := range messages {
			if told[m.ID] {
				t.Errorf("%s is there twice, the second time in %s", m.ID, lane)
			}
			told[m.ID] = true
		}
	}
}

func TestAPurgedStateIsWrittenAgainByWhoWorks(t *testing.T) {
	w := newWorld(t, 2, false)
	p := works(t, w, w.start(nil))
	w.some(30, p)
	before := p.keeper.Stats().Objects
	w.bus.purge()
	w.some(5, p)
	next := works(t, w, w.start(nil))
	if next.keeper.Stats().Objects == 0 || before == 0 {
		t.Errorf("%d objects, %d before", next.keeper.Stats().Objects, before)
	}
	w.some(20, next)
	for name := range w.topics {
		w.judge(name, true)
	}
}

func TestATakeOverFromAStateThatIsNotWholeSaysThatSomethingIsLost(t *testing.T) {
	w := newWorld(t, 6, false)
	lost := func(p *process) string {
		t.Helper()
		reason, err := p.journal.ResetReason()
		if err != nil {
			t.Fatal(err)
		}
		return reason
	}
	for turn := range 3 { // none of them gets as far as a whole state
		p := w.start(nil)
		t.Cleanup(p.end)
		taken, err := p.keeper.TakeOver(t.Context(), Takeover{})
		if err != nil {
			t.Fatal(err)
		}
		if reason := lost(p); !taken.Fresh || strings.Contains(reason, "first snapshot") != (turn > 0) {
			t.Errorf("take-over %d: %+v, lost %q", turn, taken, reason)
		}
	}
	w = newWorld(t, 6, false)
	works(t, w, w.start(nil))
	if reason := lost(works(t, w, w.start(nil))); reason != "" {
		t.Errorf("who takes a whole state over has lost %q", reason)
	}
}

func TestAJournalThatKnowsMoreThanARestoredStateGoesOn(t *testing.T) {
	w := newWorld(t, 3, false)
	p := works(t, w, w.start(nil))
	old := len(w.bus.log)
	w.some(30, p)
	p.end()
	w.bus.restore(old)
	w.goesOn(t, p)
}

func TestAPurgeWhileNobodyWorksCostsAJournalNothing(t *testing.T) {
	w := newWorld(t, 4, false)
	p := works(t, w, w.start(nil))
	w.some(30, p)
	p.end()
	w.bus.purge()
	w.goesOn(t, p)
}

// goesOn lets a process go on with its journal, and another one take over from it, and judges what all topics have.
func (w *world) goesOn(t *testing.T, p *process) {
	t.Helper()
	again := works(t, w, w.start(p.fs))
	w.some(10, again)
	next := works(t, w, w.start(nil))
	w.some(10, next)
	for name := range w.topics {
		w.judge(name, true)
	}
}

func TestASinkThatCannotBeFencedDoesNotHoldUpTheOthers(t *testing.T) {
	w := newWorld(t, 5, false)
	p := works(t, w, w.start(nil))
	w.some(10, p)
	next := w.start(nil)
	t.Cleanup(next.end)
	w.topics["second"].away = errors.New("away")
	all := map[string]sinks.Fenced{"first": w.topics["first"].open(), "second": w.topics["second"].open()}
	taken, err := next.keeper.TakeOver(t.Context(), Takeover{Sinks: all})
	if err != nil || len(taken.Waiting) != 1 || taken.Waiting["second"] == nil {
		t.Fatalf("%+v %v", taken, err)
	}
	w.topics["second"].away = nil
	done := make(chan error, 1)
	go func() { done <- next.keeper.Join(t.Context(), "second", all["second"]) }()
	if err := (<-next.keeper.asked)(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestASnapshotIsInTheStateBeforeItsObjects(t *testing.T) {
	w := newWorld(t, 8, false)
	p := works(t, w, w.start(nil))
	secrets := event.Resource{Version: "v1", Resource: "secrets", Kind: "Secret"}
	if err := p.journal.SetScopes(t.Context(), secrets, []event.StoredScope{{ID: "secrets"}}); err != nil {
		t.Fatal(err)
	}
	p.settle() // it is in the state that there is such a resource, of which nothing is known
	begun := len(w.bus.log)
	o := event.Observation{Resource: secrets, Scope: "secrets", Snapshot: "s", Position: "9", Changes: []*event.Change{
		{Type: event.Snapshot, Resource: secrets, Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "9", Snapshot: &event.SnapshotInfo{ID: "s"}},
	}}
	if err := p.journal.Append(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	p.settle()
	for _, e := range w.bus.log[begun:] {
		_, id, err := cutKey(string(e.Key))
		if e.Key[0] == keyKnown {
			t.Fatalf("%s is in the state before the snapshot that tells of it", id)
		}
		if e.Key[0] != keyScope || id != "secrets" {
			continue
		}
		if scope, bad := decodeScope(id, string(e.Value)); err != nil || bad != nil || scope.Snapshot != "s" || scope.Position != "" {
			t.Errorf("the state begins with %+v: %v %v", scope, err, bad)
		}
		return
	}
	t.Error("the scope is not in the state")
}

func TestAReportSaysWhatAStateHolds(t *testing.T) {
	w := newWorld(t, 6, false)
	p := works(t, w, w.start(nil))
	w.some(40, p)
	look := w.start(nil)
	t.Cleanup(look.end)
	r, err := look.keeper.Look(t.Context())
	if err != nil || r.Version != Version || r.Lease != "ns/g" || r.Owner != "p" || !r.Complete || len(r.Resources) != 2 || len(r.Lanes) < 4 ||
		r.Objects != len(w.cluster.living["pods"])+len(w.cluster.living["deployments.apps"]) {
		t.Fatalf("%+v %v", r, err)
	}
	if n, err := look.keeper.Reset(t.Context()); err != nil || n <= r.Objects {
		t.Errorf("removed %d: %v", n, err)
	}
	after := w.start(nil)
	t.Cleanup(after.end)
	if r, err := after.keeper.Look(t.Context()); err != nil || r.Version != 0 || r.Objects != 0 || len(r.Lanes) < 4 {
		t.Errorf("after a reset: %+v %v", r, err)
	}
}

// TestTheStateLagsAsSoonAsTheJournalHasMore: who waits until it lags no more knows that a take-over looks back no further,
// whenever the next mark is taken.
func TestTheStateLagsAsSoonAsTheJournalHasMore(t *testing.T) {
	w := newWorld(t, 1, false)
	p := works(t, w, w.start(nil))
	w.some(5, p)
	for p.keeper.Stats().Lag > 0 {
		p.settle()
	}
	before := p.journal.Newest()
	w.cluster.change()
	for _, name := range slices.Sorted(maps.Keys(p.scopes)) {
		p.watch(name)
	}
	p.flush()
	if p.journal.Newest() == before || p.keeper.Stats().Lag == 0 {
		t.Errorf("the journal holds %d changes, %d before, and the state lags %v", p.journal.Newest(), before, p.keeper.Stats().Lag)
	}
	for p.keeper.Stats().Lag > 0 {
		p.settle()
	}
}

// TestAStateThatIsToBeBegunLags though the journal is empty: one who takes over before it is complete begins with a gap.
func TestAStateThatIsToBeBegunLags(t *testing.T) {
	w := newWorld(t, 1, false)
	p := w.start(nil)
	t.Cleanup(p.end)
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	if s := p.keeper.Stats(); s.Lag == 0 || p.journal.Newest() > 0 {
		t.Errorf("the journal holds %d changes, and the state lags %v", p.journal.Newest(), s.Lag)
	}
	for p.keeper.Stats().Lag > 0 {
		p.settle()
	}
	reader := w.start(nil)
	t.Cleanup(reader.end)
	if r, err := reader.keeper.Look(t.Context()); err != nil || !r.Complete {
		t.Errorf("the state lags no more: %+v %v", r, err)
	}
}

// TestAStateLagsWhilePositionsWaitForTheBus: the journal has no change that the state lacks, and one who takes over would
// still go on from older positions.
func TestAStateLagsWhilePositionsWaitForTheBus(t *testing.T) {
	w := newWorld(t, 1, false)
	p := works(t, w, w.start(nil))
	w.some(5, p)
	for p.keeper.Stats().Lag > 0 {
		p.settle()
	}
	newest := p.journal.Newest()
	w.cluster.version++ // of something that nobody watches
	for _, s := range p.scopes {
		o, err := s.tracker.Watched(nil, strconv.Itoa(w.cluster.version))
		p.put(s, o, err)
	}
	p.flush()
	refused, away := 0, errors.New("away")
	w.bus.fail = func() error {
		if refused++; refused == 1 {
			return away
		}
		if s := p.keeper.Stats(); s.Lag == 0 || p.journal.Newest() != newest { // it was tried once, and is tried again
			t.Errorf("the journal holds %d changes, %d before, and the state lags %v", p.journal.Newest(), newest, s.Lag)
		}
		w.bus.fail = nil
		return nil
	}
	p.settle()
	if s := p.keeper.Stats(); s.Lag != 0 || refused != 2 {
		t.Errorf("it was tried %d times, and the state lags %v", refused, s.Lag)
	}
}

// A part of the keys has each entry once, whatever the number of parts.
func TestPartsAddUp(t *testing.T) {
	table := newTable()
	for n := range 3000 {
		table.put(sinks.StateEntry{Key: keyOf(keyKnown, 1, fmt.Sprint(n)), Value: []byte("v")})
	}
	table.put(sinks.StateEntry{Key: []byte{keyMeta}, Value: []byte("m")})
	for _, parts := range []int{1, 3, 16, 256, 700} {
		seen := map[string]bool{}
		for part := range parts {
			for _, e := range table.part(part, parts) {
				if seen[string(e.Key)] {
					t.Fatalf("%d parts: %q is in two", parts, e.Key)
				}
				seen[string(e.Key)] = true
			}
		}
		if len(seen) != 3001 {
			t.Errorf("%d parts have %d entries", parts, len(seen))
		}
	}
}

func TestKnownObjectsSurviveTheirForm(t *testing.T) {
	for _, k := range []event.Known{
		{UID: "0d5bd0ae-42f1-4d7e-9c6f-0b6a3f5e7c10", ResourceVersion: "12345"}, {UID: "0D5BD0AE-42F1-4D7E-9C6F-0B6A3F5E7C10", ResourceVersion: "0"},
		{UID: "", ResourceVersion: ""}, {UID: "u", ResourceVersion: "007"}, {UID: "u", ResourceVersion: "18446744073709551615"}, {UID: "u", ResourceVersion: "+1"},
	} {
		back, err := decodeKnown("", string(appendKnown(nil, k.UID, k.ResourceVersion)))
		if err != nil || back != k {
			t.Errorf("%+v came back as %+v: %v", k, back, err)
		}
	}
}

func BenchmarkChange(b *testing.B) {
	w := newWorld(b, 7, false)
	p := w.start(nil)
	defer p.end()
	if err := p.takeOver(); err != nil {
		b.Fatal(err)
	}
	changes := make([]*event.Change, 2000)
	for n := range changes {
		changes[n] = &event.Change{
			Type: event.Updated, Resource: resources["pods"], Namespace: fmt.Sprint("namespace-", n%20), Name: fmt.Sprintf("web-7d4b9c6f5d-%05d", n),
			UID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n),
		}
	}
	before := w.bus.bytes
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		batch := batch{k: p.keeper}
		for range 400 {
			c := *changes[n%len(changes)]
			c.ResourceVersion = fmt.Sprint(1_000_000 + n)
			if err := batch.change(b.Context(), &c); err != nil {
				b.Fatal(err)
			}
			n++
		}
		if err := batch.flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		w.bus.log = nil
	}
	b.ReportMetric(float64(w.bus.bytes-before)/float64(b.N), "B/change")
}

func BenchmarkLoad(b *testing.B) {
	const objects = 1_000_000
	keys := make([]sinks.StateEntry, objects)
	for n := range keys {
		keys[n] = sinks.StateEntry{
			Key:   keyOf(keyKnown, 1, fmt.Sprintf("namespace-%d/web-7d4b9c6f5d-%07d", n%200, n)),
			Value: appendKnown(nil, fmt.Sprintf("00000000-0000-4000-8000-%012d", n), fmt.Sprint(1_000_000+n)),
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		t := newTable()
		for _, e := range keys {
			t.put(e)
		}
	}
}
