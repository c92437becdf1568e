package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

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
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main", "other"}}}
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

// TestAReplayThatGivesUpWaitingEmitsNothingTwice lets the caller of each write give up after a random time, as a reload
// does: whether the write is made or not, the next one goes on behind it.
func TestAReplayThatGivesUpWaitingEmitsNothingTwice(t *testing.T) {
	const changes = 2000
	j := startJournal(t, Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}})
	for n := range changes {
		c := podChange(n, 40_000)
		j.mustAppend(event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Position: fmt.Sprint(n)})
	}
	j.waitFor(changes)
	if err := j.BeginReplay(t.Context(), Replay{ID: "r", Sink: "main", Next: 1, Last: changes}); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	givenUp := 0
	limit := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(20*time.Millisecond))))
	}
	for r := storedReplay(j); r.Next <= r.Last; r = storedReplay(j) {
		ctx, cancel := limit()
		if _, err := j.AdvanceReplay(ctx, r); err != nil {
			givenUp++
		}
		cancel()
	}
	ended := storedReplay(j)
	ended.State = "done"
	for {
		ctx, cancel := limit()
		err := j.EndReplay(ctx, ended)
		cancel()
		if err == nil {
			break
		}
	}
	seen := map[string]bool{}
	for _, r := range j.readTo(changes, j.Newest()) {
		if id := r.Change.ID(); seen[id] {
			t.Fatalf("offset %d is there twice: %s", r.Offset, id)
		} else {
			seen[id] = true
		}
	}
	if count, _ := storedReplay(j).Total(); len(seen) != changes+1 || count != changes || givenUp == 0 {
		t.Errorf("%d records, counted %d, want %d and an end; %d writes were given up", len(seen), count, changes, givenUp)
	}
}

// TestAPowerLossDuringAReplayLeavesNothingTwice cuts the power at random moments of a replay, and lets the replay of what is
// left go on.
func TestAPowerLossDuringAReplayLeavesNothingTwice(t *testing.T) {
	const changes, writes = 200, 5
	mem := vfs.NewCrashableMem()
	opts := Options{FS: mem, Declaration: Declaration{Sinks: []string{"main"}}}
	j := startJournal(t, opts)
	for n := range changes {
		observePod(j, n, fmt.Sprint(n+1))
		j.mustAppend(event.Observation{Resource: resourceNamed("pods"), Scope: "pods", Changes: []*event.Change{podChange(n, 40_000)}})
	}
	j.waitFor(2 * changes)
	if err := j.BeginReplay(t.Context(), Replay{ID: "r", Sink: "main", Next: 1, Last: 2 * changes}); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	crash := uint64(0)
	for r := storedReplay(j); r.Next <= r.Last; crash++ {
		advanced := make(chan error, 1)
		go func(before Replay) {
			var err error
			r, err = j.AdvanceReplay(t.Context(), before)
			advanced <- err
		}(r)
		j.waitFor(j.Newest() + crash%2) // of half the writes as soon as they are visible
		crashed := opts
		crashed.FS = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: random.IntN(101), RNG: rand.New(rand.NewPCG(3, crash))})
		if err := <-advanced; err != nil {
			t.Fatal(err)
		}
		checkCrashedReplay(t, crashed, 2*changes)
	}
	if crash < writes {
		t.Errorf("the power was cut %d times only", crash)
	}
}

// checkCrashedReplay lets the replay of what a power loss left go on, and checks that it has each of so many changes once.
func checkCrashedReplay(t *testing.T, opts Options, changes int) {
	t.Helper()
	j := startJournal(t, opts)
	defer j.stopAndClose()
	for r := storedReplay(j); r.Next <= r.Last; {
		r = advanceReplay(j, r)
	}
	records := j.readTo(uint64(changes), j.Newest())
	if total, _ := storedReplay(j).Total(); total != changes || len(records) != total {
		t.Errorf("%d records are replayed, and %d counted", len(records), total)
	}
	for i, r := range records {
		if want := fmt.Sprintf("r/%d", i+1); r.Change.Pass != want {
			t.Fatalf("record %d is %s", i, r.Change.Pass)
		}
	}
}

// TestAReplayKeepsWhatItReadsUntilTheJournalIsHalfFull lets the sinks settle everything while a replay waits.
func TestAReplayKeepsWhatItReadsUntilTheJournalIsHalfFull(t *testing.T) {
	j := startJournal(t, Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}, MaxBytes: 8 << 20, TailBytes: 1})
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

// TestAReplayLeavesHalfOfTheJournalToWhatIsWatched replays for a sink while another one is away: beyond half of the bound
// nothing is appended, and as the other one catches up, the replay goes on.
func TestAReplayLeavesHalfOfTheJournalToWhatIsWatched(t *testing.T) {
	const maxBytes = 8 << 20
	j := startJournal(t, Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main", "away"}}, MaxBytes: maxBytes})
	next := 0
	for ; j.currentExtent().sizeBytes() < 3<<20; next++ {
		j.mustAppend(event.Observation{Resource: resourceNamed("pods"), Scope: "pods", Changes: []*event.Change{podChange(next, 40_000)}})
		j.waitFor(uint64(next + 1))
	}
	j.mustSettle("main", event.Cursor{Low: j.Newest()})
	if err := j.BeginReplay(t.Context(), Replay{ID: "r", Sink: "main", Next: 1, Last: j.Newest()}); err != nil {
		t.Fatal(err)
	}
	r := storedReplay(j)
	for before := uint64(0); r.Next != before; {
		before = r.Next
		r = advanceReplay(j, r)
		j.mustSettle("main", event.Cursor{Low: j.Newest()})
	}
	if size := j.currentExtent().sizeBytes(); r.Next > r.Last || size > 3*maxBytes/4 {
		t.Fatalf("it has filled the journal up to %d bytes, and is at %d of %d", size, r.Next, r.Last)
	}
	for r.Next <= r.Last {
		j.mustSettle("away", event.Cursor{Low: r.Next - 1}) // it catches up
		before := r.Next
		if r = advanceReplay(j, r); r.Next == before {
			t.Fatalf("the replay stays at %d of %d", r.Next, r.Last)
		}
		j.mustSettle("main", event.Cursor{Low: j.Newest()})
	}
}
