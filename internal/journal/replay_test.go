package journal

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// advanceReplay advances a replay by one write.
func advanceReplay(j *runningJournal, r Replay) Replay {
	j.t.Helper()
	next, err := j.AdvanceReplay(j.t.Context(), r)
	if err != nil {
		j.t.Fatal(err)
	}
	return next
}

// storedReplay returns the only replay of a journal.
func storedReplay(j *runningJournal) Replay {
	j.t.Helper()
	all := j.Replays()
	if len(all) != 1 {
		j.t.Fatalf("the replays are %+v", all)
	}
	return all[0]
}

// TestAReplayEmitsTheJournalAgainOnce replays several writes, and opens the journal again after each of them.
func TestAReplayEmitsTheJournalAgainOnce(t *testing.T) {
	const changes = 2*replayWriteRecords + 100
	opts := Options{Dir: t.TempDir(), Sinks: []string{"main", "other"}}
	j := startJournal(t, opts)
	var since time.Time
	for n := range changes {
		c := podChange(n, 400)
		switch {
		case n == 50:
			since = c.ObservedAt
		case n%10 == 3:
			c.OnlySink = "other"
		case n%10 == 4:
			c.OnlySink = "main"
		case n%10 == 5:
			c.Type, c.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "s"}
		}
		j.mustAppend(event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Position: fmt.Sprint(n)})
	}
	j.waitFor(changes)
	if err := j.BeginReplay(t.Context(), Replay{ID: "r", Sink: "main", Since: since, Next: 1, Last: changes}); err != nil {
		t.Fatal(err)
	}
	want := 0
	for r := storedReplay(j); r.Next <= r.Last; r = storedReplay(j) {
		want, _ = advanceReplay(j, r).Total()
		j.stopAndClose()
		j = startJournal(t, opts)
	}
	ended := storedReplay(j)
	ended.State = "done"
	if err := j.EndReplay(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	records := j.readTo(changes, j.Newest())
	original, at := j.readTo(0, changes), 50
	for i, r := range records[:len(records)-1] {
		for original[at].Change.OnlySink == "other" {
			at++
		}
		of := original[at]
		at++
		c := r.Change
		if c.Type != event.Replayed || c.OnlySink != "main" || c.Snapshot != nil || string(c.After) != string(of.Change.After) ||
			c.Replay.ID != "r" || c.Replay.Of != of.Change.ID() || c.Replay.Type != of.Change.Type || c.Pass != fmt.Sprintf("r/%d", of.Offset) {
			t.Fatalf("record %d is %+v of %+v", i, c, c.Replay)
		}
	}
	end := records[len(records)-1].Change
	if at != changes || len(records) != want+1 || end.Type != event.ReplayEnd || end.Replay.Count != want || end.Replay.State != "done" {
		t.Errorf("%d of %d records, up to %d; the end is %+v", len(records), want, at, end.Replay)
	}
	if err := j.RemoveReplay(t.Context(), "r"); err != nil || len(j.Replays()) > 0 {
		t.Errorf("left are %+v, %v", j.Replays(), err)
	}
}

// TestAReplayKeepsWhatItReadsUntilTheJournalIsHalfFull lets the sinks settle everything while a replay waits.
func TestAReplayKeepsWhatItReadsUntilTheJournalIsHalfFull(t *testing.T) {
	j := startJournal(t, Options{Dir: t.TempDir(), Sinks: []string{"main"}, MaxBytes: 8 << 20, TailBytes: 1})
	next := 0
	appendUntil := func(bytes int64) {
		for ; j.currentExtent().sizeBytes() < bytes; next++ {
			observePod(j, next, fmt.Sprint(next+1))
			if next%100 == 99 {
				j.waitFor(uint64(next + 1))
				j.mustSettle("main", event.Cursor{Low: j.Newest()})
			}
		}
	}
	appendUntil(100 << 10)
	if err := j.BeginReplay(t.Context(), Replay{ID: "r", Sink: "main", Next: 2, Last: j.Newest()}); err != nil {
		t.Fatal(err)
	}
	appendUntil(3 << 20)
	if j.Oldest() > 2 {
		t.Fatalf("%d is trimmed while a replay reads from 2", j.Oldest())
	}
	for low := uint64(0); low <= 2; low = j.Oldest() { // the bound comes first
		for range 100 {
			observePod(j, next, fmt.Sprint(next+1))
			next++
		}
		j.waitFor(uint64(next))
		j.mustSettle("main", event.Cursor{Low: j.Newest()})
	}
	if _, err := j.AdvanceReplay(t.Context(), storedReplay(j)); !errors.Is(err, ErrTrimmed) {
		t.Errorf("what is trimmed is replayed: %v", err)
	}
}
