package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// startActive makes p the active process and delivers everything.
func startActive(t *testing.T, w *world, p *process) *process {
	t.Helper()
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	p.settleAll()
	return p
}

// changeCluster makes n changes, which p delivers unless it is nil.
func (w *world) changeCluster(n int, p *process) {
	for range n {
		w.cluster.changeObject()
	}
	if p != nil {
		p.settleAll()
	}
}

func refusalReason(err error) string {
	var r *RefusedError
	if !errors.As(err, &r) {
		return ""
	}
	return r.Reason
}

func TestRefusedStateFencesNoSink(t *testing.T) {
	w := newWorld(t, 1, false)
	p := startActive(t, w, w.startProcess(nil))
	other := w.startProcess(nil)
	other.writer.opts.Lease = "ns/h"
	if _, err := other.writer.TakeOver(t.Context(), TakeOverOptions{}); !strings.Contains(refusalReason(err), "the Lease ns/g") {
		t.Errorf("another Lease: %v", err)
	}
	other.writer.opts.Lease = "" // as when an election is added or removed
	if err := p.journal.SetCluster(t.Context(), "here"); err != nil {
		t.Fatal(err)
	}
	w.changeCluster(3, p)
	if _, err := other.writer.TakeOver(t.Context(), TakeOverOptions{Cluster: "there"}); !strings.Contains(refusalReason(err), "of the cluster here") {
		t.Errorf("another cluster: %v", err)
	}
	newer := append([]byte{Version + 1}, "whatever it holds"...)
	if err := p.writer.entries.commitEntries(t.Context(), []sinks.StateEntry{{Key: []byte{keyMeta}, Value: newer}}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.writer.TakeOver(t.Context(), TakeOverOptions{}); !strings.Contains(refusalReason(err), "newer exporter") {
		t.Errorf("a newer format: %v", err)
	}
	w.changeCluster(3, p) // it is still active
	if p.deposed {
		t.Error("the active process was deposed")
	}
}

// TestLaneRecordedDuringFencingIsFenced keeps the first process publishing until the second one claims the state, while the
// second one is fencing the sinks.
func TestLaneRecordedDuringFencingIsFenced(t *testing.T) {
	w := newWorld(t, 9, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(30, p)
	epoch, other := w.topics["first"].epoch, sinks.Lane("first/other")
	for p.journal.Newest() == p.pipes["first"].low { // until one change is undelivered
		w.cluster.changeObject()
		for _, name := range slices.Sorted(maps.Keys(p.scopes)) {
			p.watchScope(name)
		}
		p.flushJournal()
	}
	records, err := p.journal.Read(t.Context(), p.pipes["first"].low)
	if err != nil {
		t.Fatal(err)
	}
	w.bus.beforeClaim = func() {
		w.topics["first"].awaitFence(epoch)
		if !p.publishRecord(p.sinks["first"], other, records[0]) {
			t.Error("the unknown lane was fenced")
		}
	}
	next := startActive(t, w, w.startProcess(nil))
	w.bus.beforeClaim = nil
	_, err = p.sinks["first"].Publish(t.Context(), other, nil)
	var deposed *sinks.DeposedError
	if !errors.As(err, &deposed) {
		t.Errorf("the lane that was recorded at the last moment: %v; want a DeposedError", err)
	}
	w.changeCluster(20, next)
	w.verifyTopic("second", true)
	seen := map[string]bool{}
	for lane, messages := range w.topics["first"].messagesByLane() {
		for _, m := range messages {
			if seen[m.ID] {
				t.Errorf("%s is there twice, the second time in %s", m.ID, lane)
			}
			seen[m.ID] = true
		}
	}
}

// TestLanesAdvanceWhileResourceIsForbidden takes a resource away from all processes after the first one, with changes of it
// in the tails: the next ones read nothing again, and know what the lanes hold of it when it is back.
func TestLanesAdvanceWhileResourceIsForbidden(t *testing.T) {
	const forbidden = "pods"
	w := newWorld(t, 12, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(30, p)
	w.changeCluster(30, nil)
	p.deliverAll() // and the state has nothing of that
	for n := range 3 {
		p = w.startProcess(nil)
		p.writer.sinks.carryAfter = 0
		if err := p.takeOver(); err != nil {
			t.Fatal(err)
		}
		if read := p.writer.Stats().TailSize; (n == 0) != (read > 0) {
			t.Errorf("failover %d: %d messages of the tails were read again", n, read)
		}
		p.forbidden = forbidden
		w.changeCluster(30, p)
		if lag := p.writer.Stats().Lag; lag != 0 {
			t.Errorf("failover %d: the state lags by %v", n, lag)
		}
	}
	carried := func() int {
		c, err := p.writer.mirror.table.decodeContent()
		if err != nil {
			t.Fatal(err)
		}
		return len(c.carried["first"])
	}
	if carried() == 0 {
		t.Error("the state carries no records of the forbidden resource")
	}
	p.forbidden = ""
	p.settleAll()
	if n := carried(); n != 0 {
		t.Errorf("the state still carries %d chunks of a resource that was read", n)
	}
	for name := range w.topics {
		w.verifyTopic(name, true)
	}
}

// TestStateLagsWhileTailsAreNotCovered for less than carryAfter after a failover.
func TestStateLagsWhileTailsAreNotCovered(t *testing.T) {
	w := newWorld(t, 13, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(30, p)
	w.changeCluster(30, nil)
	p.deliverAll()
	p = w.startProcess(nil)
	p.writer.sinks.carryAfter = carryAfter
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	p.forbidden = "pods"
	w.changeCluster(30, p)
	if lag := p.writer.Stats().Lag; lag == 0 {
		t.Error("the lanes are not covered, and the lag is 0")
	}
	p.forbidden = ""
	p.settleAll()
	if lag := p.writer.Stats().Lag; lag != 0 {
		t.Errorf("all is covered, and the lag is %v", lag)
	}
}

func TestActiveProcessRewritesPurgedState(t *testing.T) {
	w := newWorld(t, 2, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(30, p)
	before := p.writer.Stats().Objects
	w.bus.purgeState()
	w.changeCluster(5, p)
	next := startActive(t, w, w.startProcess(nil))
	if next.writer.Stats().Objects == 0 || before == 0 {
		t.Errorf("%d objects, %d before", next.writer.Stats().Objects, before)
	}
	w.changeCluster(20, next)
	for name := range w.topics {
		w.verifyTopic(name, true)
	}
}

func TestTakeOverFromIncompleteStateReportsLoss(t *testing.T) {
	w := newWorld(t, 6, false)
	lost := func(p *process) string {
		t.Helper()
		reason, err := p.journal.ResetReason()
		if err != nil {
			t.Fatal(err)
		}
		return reason
	}
	for turn := range 3 { // none of them completes a state
		p := w.startProcess(nil)
		taken, err := p.writer.TakeOver(t.Context(), TakeOverOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if reason := lost(p); !taken.Fresh || strings.Contains(reason, "first snapshot") != (turn > 0) {
			t.Errorf("take-over %d: %+v, lost %q", turn, taken, reason)
		}
	}
	w = newWorld(t, 6, false)
	startActive(t, w, w.startProcess(nil))
	if reason := lost(startActive(t, w, w.startProcess(nil))); reason != "" {
		t.Errorf("a take-over from a complete state has lost %q", reason)
	}
}

// TestWhatTheStateLacksOfAResourceIsAGap ends a process before the state has any of its first lists: what happens until the
// next one lists lies inside a gap, and the deletions come.
func TestWhatTheStateLacksOfAResourceIsAGap(t *testing.T) {
	w := newWorld(t, 6, false)
	p := w.startProcess(nil)
	if err := errors.Join(p.takeOver(), p.writer.checkpoints.advanceState(t.Context())); err != nil {
		t.Fatal(err)
	}
	w.changeCluster(40, nil)
	p.deliverAll()
	w.changeCluster(40, nil)
	startActive(t, w, w.startProcess(nil))
	for name := range w.topics {
		w.verifyTopic(name, false)
		if w.verifyGaps(name) == 0 {
			t.Errorf("%s: nothing was missed", name)
		}
	}
}

func TestJournalNewerThanRestoredStateContinues(t *testing.T) {
	w := newWorld(t, 3, false)
	p := startActive(t, w, w.startProcess(nil))
	old := len(w.bus.log)
	w.changeCluster(30, p)
	p.shutDown()
	w.bus.restorePrefix(old)
	w.verifyContinuation(t, p)
}

func TestJournalSurvivesPurgeWithoutActiveProcess(t *testing.T) {
	w := newWorld(t, 4, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(30, p)
	p.shutDown()
	w.bus.purgeState()
	w.verifyContinuation(t, p)
}

// verifyContinuation restarts p on its journal, lets another process take over, and verifies all topics.
func (w *world) verifyContinuation(t *testing.T, p *process) {
	t.Helper()
	again := startActive(t, w, w.startProcess(p.fs))
	w.changeCluster(10, again)
	next := startActive(t, w, w.startProcess(nil))
	w.changeCluster(10, next)
	for name := range w.topics {
		w.verifyTopic(name, true)
	}
}

// TestARetriedDeadLetterOutlivesTwoFailovers: its change is in no state, so it is a dead letter again where it was one.
func TestARetriedDeadLetterOutlivesTwoFailovers(t *testing.T) {
	w := newWorld(t, 6, false)
	w.onlyFirst = true
	p := startActive(t, w, w.startProcess(nil))
	before := p.journal.Newest()
	w.changeCluster(30, nil)
	var rejected event.Record // the last change
	for _, name := range slices.Sorted(maps.Keys(p.scopes)) {
		for p.scopes[name].stored.Position != strconv.Itoa(w.cluster.newestVersion()) {
			p.watchScope(name)
		}
	}
	for before < p.journal.Newest() {
		records, err := p.journal.Read(t.Context(), before)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if before = r.Offset; !r.Change.Type.IsControl() {
				rejected = r
			}
		}
	}
	letter := event.DeadLetter{Offset: rejected.Offset, Reason: "no", Change: rejected.Change}
	if err := p.journal.Settle(t.Context(), "first", event.Cursor{Low: before}, []event.DeadLetter{letter}); err != nil {
		t.Fatal(err)
	}
	p.isDeposed(p.writer.checkpoints.advanceState(t.Context()))
	if n, kept, err := p.journal.RequeueDeadLetters(t.Context(), "first", []uint64{rejected.Offset}); n != 1 || err != nil {
		t.Fatal(n, kept, err)
	}
	p.shutDown()
	startActive(t, w, w.startProcess(nil)).shutDown()

	again := w.startProcess(p.fs)
	if err := again.takeOver(); err != nil {
		t.Fatal(err)
	}
	left, err := again.journal.NewestDeadLetters("first", 2)
	if err != nil || len(left) != 1 || left[0].Change.ID() != rejected.Change.ID() {
		t.Fatalf("the dead letters are %+v, %v", left, err)
	}
	if n, kept, err := again.journal.RequeueDeadLetters(t.Context(), "first", []uint64{left[0].Offset}); n != 1 || err != nil {
		t.Fatal(n, kept, err)
	}
	again.settleAll()
	delivered := false
	for _, messages := range w.topics["first"].messagesByLane() {
		delivered = delivered || slices.ContainsFunc(messages, func(e sinks.Emitted) bool { return e.ID == rejected.Change.ID() })
	}
	if !delivered {
		t.Errorf("%s is not delivered", rejected.Change.ID())
	}
}

// TestAReplacedOwnerFencesNoSink has a process that was frozen while it was replaced, and fences again because its
// configuration was edited meanwhile.
func TestAReplacedOwnerFencesNoSink(t *testing.T) {
	w := newWorld(t, 5, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(10, p)
	next := startActive(t, w, w.startProcess(nil))
	first := w.topics["first"]
	epoch, mine := first.epoch, map[string]sinks.Fenced{"first": first.openSink()}
	_, err := p.writer.TakeOver(t.Context(), TakeOverOptions{Sinks: mine})
	if !errors.As(err, new(*sinks.DeposedError)) || first.epoch != epoch || p.writer.IsOwner() {
		t.Errorf("fenced %d times, owner %v: %v", first.epoch-epoch, p.writer.IsOwner(), err)
	}
	w.changeCluster(10, next)
	if next.deposed {
		t.Error("the active process was deposed")
	}
}

// TestAnOwnerFencesAgainWhileTheStateIsAway: an edited configuration stops no delivery.
func TestAnOwnerFencesAgainWhileTheStateIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, false)
		p := startActive(t, w, w.startProcess(nil))
		w.changeCluster(10, p)
		w.bus.failWrite = func() error { return errors.New("away") }
		mine := map[string]sinks.Fenced{"first": w.topics["first"].openSink()}
		taken, err := p.writer.TakeOver(t.Context(), TakeOverOptions{Sinks: mine})
		if err != nil || len(taken.Waiting) != 0 {
			t.Fatalf("%+v %v", taken, err)
		}
		written := len(w.bus.log)
		w.bus.failWrite = nil
		if err := p.writer.entries.commitEntries(t.Context(), nil); err != nil || len(w.bus.log) == written {
			t.Errorf("%d entries followed: %v", len(w.bus.log)-written, err)
		}
	})
}

// TestASlowSinkIsFencedAtLast: it needs longer than a take-over waits, each time.
func TestASlowSinkIsFencedAtLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 5, false)
		p := startActive(t, w, w.startProcess(nil))
		w.changeCluster(10, p)
		next := w.startProcess(nil)
		w.topics["second"].slow = 50 * time.Second
		all := map[string]sinks.Fenced{"first": w.topics["first"].openSink(), "second": w.topics["second"].openSink()}
		taken, err := next.writer.TakeOver(t.Context(), TakeOverOptions{Sinks: all})
		if err != nil || len(taken.Waiting) != 1 || taken.Duration > waitForOthers+time.Second {
			t.Fatalf("%+v %v", taken, err)
		}
		attempts := 0
		for err = errors.New("it waits"); err != nil && attempts < 10; attempts++ {
			done := make(chan error, 1)
			go func() { done <- next.writer.AddSink(t.Context(), "second", all["second"]) }()
			if err := (<-next.writer.requests)(t.Context()); err != nil {
				t.Fatal(err)
			}
			err = <-done
		}
		if err != nil || attempts < 2 {
			t.Errorf("%d attempts: %v", attempts, err)
		}
	})
}

// TestStateNeverHoldsObjectsBesideAnotherPosition ends the writer of a state before each of the writes of a commit. Whatever
// a successor finds is the content of the cluster at the position of the state: objects newer than that would make it report
// the deletion of an earlier object of the same name for the living one.
func TestStateNeverHoldsObjectsBesideAnotherPosition(t *testing.T) {
	for _, atomicBytes := range []int{400, 64 << 10} {
		w := newWorld(t, 8, false)
		w.bus.atomicBytes = atomicBytes
		for end := 1; ; end++ {
			p := startActive(t, w, w.startProcess(nil))
			for range 30 {
				w.cluster.changeObject()
			}
			p.deliverAll()
			writes := 0
			w.bus.failWrite = func() error {
				if writes++; writes == end {
					return errKilled
				}
				return nil
			}
			finished := !p.isDeposed(p.writer.checkpoints.advanceState(t.Context()))
			w.bus.failWrite = nil
			w.verifyStoredObjects(end)
			if finished {
				if atomicBytes == 400 && end < 5 {
					t.Errorf("the commit was %d writes; want a large one", end)
				}
				break
			}
		}
	}
}

// verifyStoredObjects compares the stored objects of each resource with the content of the cluster at the stored position.
func (w *world) verifyStoredObjects(end int) {
	w.t.Helper()
	reader := w.startProcess(nil)
	defer reader.shutDown()
	c, err := reader.writer.mirror.readContent(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	stored := map[string]map[string]string{}
	for _, r := range c.resources {
		stored[r.String()] = map[string]string{}
	}
	err = reader.writer.mirror.table.eachKnown(func(n uint64, k event.Known) error {
		stored[c.resources[n].String()][k.Key] = k.UID + "@" + k.ResourceVersion
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for n, r := range c.resources {
		at, _ := strconv.Atoi(c.scopes[n][0].Position)
		if want := w.cluster.objectsAt(r.String(), at); !maps.Equal(stored[r.String()], want) {
			w.t.Errorf("the writer ended before write %d: at %d the state holds\n%s\nwant\n%s", end, at,
				formatObjects(stored[r.String()]), formatObjects(want))
		}
	}
}

func TestInspectReportsStateContent(t *testing.T) {
	w := newWorld(t, 6, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(40, p)
	look := w.startProcess(nil)
	r, err := look.writer.Inspect(t.Context())
	if err != nil || r.Version != Version || r.Lease != "ns/g" || r.Owner != "p" || !r.Complete || len(r.Resources) != 2 || len(r.Lanes) < 4 ||
		r.Objects != len(w.cluster.existing["pods"])+len(w.cluster.existing["deployments.apps"]) {
		t.Fatalf("%+v %v", r, err)
	}
	if n, err := look.writer.Reset(t.Context()); err != nil || n <= r.Objects {
		t.Errorf("removed %d: %v", n, err)
	}
	after := w.startProcess(nil)
	if r, err := after.writer.Inspect(t.Context()); err != nil || r.Version != 0 || r.Objects != 0 || len(r.Lanes) < 4 {
		t.Errorf("after a reset: %+v %v", r, err)
	}
}

// TestStateLagsWhenJournalGrows checks that the lag does not depend on when the next checkpoint is taken: a caller that
// waits for no lag knows how far a take-over looks back.
func TestStateLagsWhenJournalGrows(t *testing.T) {
	w := newWorld(t, 1, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(5, p)
	for p.writer.Stats().Lag > 0 {
		p.settleAll()
	}
	before := p.journal.Newest()
	w.cluster.changeObject()
	for _, name := range slices.Sorted(maps.Keys(p.scopes)) {
		p.watchScope(name)
	}
	p.flushJournal()
	if p.journal.Newest() == before || p.writer.Stats().Lag == 0 {
		t.Errorf("the journal holds %d changes (%d before), and the state lags %v", p.journal.Newest(), before, p.writer.Stats().Lag)
	}
	for p.writer.Stats().Lag > 0 {
		p.settleAll()
	}
}

// TestStateWithoutBaseLags checks that an incomplete state lags even if the journal is empty: a take-over from it starts
// with a gap.
func TestStateWithoutBaseLags(t *testing.T) {
	w := newWorld(t, 1, false)
	p := w.startProcess(nil)
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	if s := p.writer.Stats(); s.Lag == 0 || p.journal.Newest() > 0 {
		t.Errorf("the journal holds %d changes, and the state lags %v", p.journal.Newest(), s.Lag)
	}
	for p.writer.Stats().Lag > 0 {
		p.settleAll()
	}
	reader := w.startProcess(nil)
	if r, err := reader.writer.Inspect(t.Context()); err != nil || !r.Complete {
		t.Errorf("the state does not lag: %+v %v", r, err)
	}
}

// TestStateLagsWhilePositionsAreUnwritten advances positions only. The state has every change of the journal, but a
// take-over would continue from older positions.
func TestStateLagsWhilePositionsAreUnwritten(t *testing.T) {
	w := newWorld(t, 1, false)
	p := startActive(t, w, w.startProcess(nil))
	w.changeCluster(5, p)
	for p.writer.Stats().Lag > 0 {
		p.settleAll()
	}
	newest := p.journal.Newest()
	w.cluster.version++ // of an unwatched resource
	for _, s := range p.scopes {
		o, err := s.tracker.ObserveEvents(nil, strconv.Itoa(w.cluster.version))
		p.appendObservation(s, o, err)
	}
	p.flushJournal()
	refused, away := 0, errors.New("away")
	w.bus.failWrite = func() error {
		if refused++; refused == 1 {
			return away
		}
		if s := p.writer.Stats(); s.Lag == 0 || p.journal.Newest() != newest { // the second attempt
			t.Errorf("the journal holds %d changes (%d before), and the state lags %v", p.journal.Newest(), newest, s.Lag)
		}
		w.bus.failWrite = nil
		return nil
	}
	p.settleAll()
	if s := p.writer.Stats(); s.Lag != 0 || refused != 2 {
		t.Errorf("%d attempts, and the state lags %v", refused, s.Lag)
	}
}

// TestAStateIsStoredAgainAndNothingReturns lets an owner store so much that the bus removes older entries several times. A
// follower that reads often and one that reads nothing before know what the owner knows.
func TestAStateIsStoredAgainAndNothingReturns(t *testing.T) {
	w := newWorld(t, 7, false)
	near, far := w.startProcess(nil), w.startProcess(nil)
	p := startActive(t, w, w.startProcess(nil))
	for n := range 1500 {
		e := sinks.StateEntry{Key: fmt.Append(nil, "z", w.random.IntN(40))} // a key of no known type
		if w.random.IntN(3) > 0 {
			e.Value = fmt.Appendf(nil, "%0300d", n)
		}
		if err := p.writer.entries.commitEntries(t.Context(), []sinks.StateEntry{e}); err != nil {
			t.Fatal(err)
		}
		if err := near.writer.readStandby(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := far.writer.readStandby(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored := func(p *process) map[string]string {
		all := map[string]string{}
		for part := range shards {
			for _, e := range p.writer.mirror.table.entriesOfPart(part) {
				all[string(e.Key)] = string(e.Value)
			}
		}
		return all
	}
	want := stored(p)
	if !maps.Equal(stored(near), want) || !maps.Equal(stored(far), want) {
		t.Errorf("the owner has %d entries, its followers %d and %d that are not the same", len(want), len(stored(near)), len(stored(far)))
	}
	if w.bus.first == 0 || len(w.bus.log) > 50*len(want) {
		t.Errorf("the bus has %d entries for %d, and removed %d", len(w.bus.log), len(want), w.bus.first)
	}
}

// What a filter has left out is not in a state that is built from the journal, as it is not in one built from changes.
func TestARebuiltStateLacksWhatNoDestinationHas(t *testing.T) {
	w := newWorld(t, 1, false)
	p := w.startProcess(nil)
	p.writer.opts.IsEmitted = func(summary string) bool { return summary != "left out" }
	if err := p.journal.Append(t.Context(), event.Observation{Resource: resources["pods"], Scope: "pods", Position: "1", Known: []event.Known{
		{Key: "ns/in", UID: "a", ResourceVersion: "1", Summary: "in"}, {Key: "ns/out", UID: "b", ResourceVersion: "1", Summary: "left out"},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := p.journal.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	startActive(t, w, p)
	var keys []string
	if err := p.writer.mirror.table.eachKnown(func(_ uint64, k event.Known) error { keys = append(keys, k.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(keys, []string{"ns/in"}) {
		t.Errorf("the state has %q", keys)
	}
}

// A state that is built from a journal which no longer has its oldest changes moves the journal's cursor from where these
// end, before its first checkpoint is stored too.
func TestARebuiltStateCoversWhatTheJournalHasTrimmed(t *testing.T) {
	w := newWorld(t, 1, false)
	p := w.startProcess(nil)
	body := make([]byte, 256<<10) // so that a few changes are worth a trim
	for n := 1; p.journal.Oldest() <= 1; n++ {
		for i := range body {
			body[i] = byte(w.random.Uint32())
		}
		change := event.Change{Type: event.Updated, Resource: resources["pods"], Namespace: "ns", Name: "a", UID: "a", ResourceVersion: strconv.Itoa(n),
			After: fmt.Appendf(nil, `"%x"`, body)}
		o := event.Observation{Resource: change.Resource, Scope: "pods", Position: change.ResourceVersion, Changes: []*event.Change{&change}}
		if err := errors.Join(p.journal.Append(t.Context(), o), p.journal.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		for _, sink := range append(p.members, Sink) {
			if err := p.journal.Settle(t.Context(), sink, event.Cursor{Low: p.journal.Newest()}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.takeOver(); err != nil {
		t.Fatal(err)
	}
	p.writer.checkpoints.rebuild = false
	if err := p.writer.checkpoints.settleJournal(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestKnownObjectRoundTrip(t *testing.T) {
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
