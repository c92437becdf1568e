package journal

import (
	"slices"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// observePod appends an observation of a Pod in a version, and returns the change.
func observePod(j *runningJournal, n int, version string) *event.Change {
	j.t.Helper()
	c := podChange(n, 400)
	c.ResourceVersion = version
	j.mustAppend(event.Observation{
		Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c},
		Known: []event.Known{{Key: c.Namespace + "/" + c.Name, UID: c.UID, ResourceVersion: version}}, Position: version,
	})
	return c
}

// lettersOf returns the offsets of the dead letters of a sink, compared with their count.
func lettersOf(j *runningJournal, sink string) []uint64 {
	j.t.Helper()
	offsets, err := j.DeadLetterOffsets(sink, 0)
	if err != nil {
		j.t.Fatal(err)
	}
	if counted := j.allCounts()[sink].letters; counted != int64(len(offsets)) {
		j.t.Errorf("%d dead letters are counted, %d are there", counted, len(offsets))
	}
	return offsets
}

func TestRequeuedDeadLettersFollowEverythingForTheirSinkAlone(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main", "other"}}}
	j := startJournal(t, opts)
	var letters []event.DeadLetter
	for n := range 70 { // several writes
		letters = append(letters, event.DeadLetter{Offset: uint64(n + 1), Time: time.Unix(1, 0).UTC(), Reason: "no", Change: observePod(j, n, "1")})
	}
	withheld := observePod(j, 70, "1").Clone()
	withheld.Withheld = "a path"
	letters = append(letters, event.DeadLetter{Offset: 71, Reason: "no", Change: withheld})
	j.waitFor(71)
	j.mustSettle("main", event.Cursor{Low: 71, High: 71}, letters...)
	j.mustSettle("other", event.Cursor{Low: 71, High: 71}, letters[5])
	observePod(j, 3, "2")
	j.waitFor(72)

	offsets := append(lettersOf(j, "main"), 999)
	requeued, kept, err := j.RequeueDeadLetters(t.Context(), "main", offsets)
	if err != nil || requeued != 69 || kept[reasonNewer] != 1 || kept[reasonWithheld] != 1 {
		t.Fatalf("requeued %d, kept %v, %v", requeued, kept, err)
	}
	j.stopAndClose()
	j = startJournal(t, opts)
	if got := lettersOf(j, "main"); !slices.Equal(got, []uint64{4, 71}) {
		t.Errorf("left are %v", got)
	}
	if got := lettersOf(j, "other"); !slices.Equal(got, []uint64{6}) {
		t.Errorf("of the other sink %v are left", got)
	}
	records := j.readTo(72, 72+69)
	for i, r := range records {
		n := i
		if i >= 3 {
			n++ // the one with a newer change
		}
		if want := letters[n].Change; r.Change.OnlySink != "main" || r.Change.ID() != want.ID() || string(r.Change.After) != string(want.After) {
			t.Fatalf("offset %d has %s for sink %q, not %s", r.Offset, r.Change.ID(), r.Change.OnlySink, want.ID())
		}
	}
	if dropped, err := j.DropDeadLetters(t.Context(), "main", []uint64{4, 5, 71}); err != nil || dropped != 2 || len(lettersOf(j, "main")) != 0 {
		t.Errorf("dropped %d, %v", dropped, err)
	}
}

func TestADeadLetterIsNotRequeuedBehindAChangeOfTheSameWrite(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}}
	j := startJournal(t, opts)
	letter := event.DeadLetter{Offset: 1, Reason: "no", Change: observePod(j, 1, "1")}
	j.waitFor(1)
	j.mustSettle("main", event.Cursor{Low: 1, High: 1}, letter)
	j.stopAndClose()

	opened := openJournal(t, opts) // nothing is committed before it runs
	waiting := &runningJournal{Journal: opened, t: t}
	observePod(waiting, 1, "2")
	type outcome struct {
		requeued int
		kept     map[string]int
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		requeued, kept, err := opened.RequeueDeadLetters(t.Context(), "main", []uint64{1})
		done <- outcome{requeued, kept, err}
	}()
	for queued := 0; queued < 2; time.Sleep(time.Millisecond) {
		opened.queue.mu.Lock()
		queued = len(opened.queue.requests)
		opened.queue.mu.Unlock()
	}
	j = runJournal(t, opened)
	if got := <-done; got.err != nil || got.requeued != 0 || got.kept[reasonNewer] != 1 {
		t.Errorf("%+v", got)
	}
	if got := lettersOf(j, "main"); !slices.Equal(got, []uint64{1}) {
		t.Errorf("left are %v", got)
	}
}

// TestARetriedChangeThatASeedDropsIsADeadLetterAgain, unless its sink has settled it.
func TestARetriedChangeThatASeedDropsIsADeadLetterAgain(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"main", "other"}}}
	j := startJournal(t, opts)
	var letters []event.DeadLetter
	for n := range 70 {
		letters = append(letters, event.DeadLetter{Offset: uint64(n + 1), Reason: "no", Change: observePod(j, n, "1")})
	}
	j.waitFor(70)
	j.mustSettle("main", event.Cursor{Low: 70, High: 70}, letters...)
	j.mustSettle("other", event.Cursor{Low: 70, High: 70}, letters[0])
	if n, _, err := j.RequeueDeadLetters(t.Context(), "main", lettersOf(j, "main")); n != 70 || err != nil {
		t.Fatal(n, err)
	}
	if n, _, err := j.RequeueDeadLetters(t.Context(), "other", []uint64{1}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	j.mustSettle("main", event.Cursor{Low: 72, High: 72})
	j.stopAndClose()
	j = startJournal(t, opts)
	if got := append(lettersOf(j, "main"), lettersOf(j, "other")...); len(got) > 0 {
		t.Errorf("after a restart %v are dead letters", got)
	}
	for range 2 {
		j.mustSeed(podSeed(3))
		if got := lettersOf(j, "main"); len(got) != 68 || got[0] != 73 || got[67] != 140 {
			t.Errorf("after a seed the dead letters are %v", got)
		}
		if got := lettersOf(j, "other"); !slices.Equal(got, []uint64{141}) {
			t.Errorf("of the other sink they are %v", got)
		}
	}
	newest, err := j.NewestDeadLetters("main", 70)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range newest {
		want := letters[69-i].Change
		if got.Reason != reasonTakenOver || got.Change.ID() != want.ID() || string(got.Change.After) != string(want.After) {
			t.Fatalf("dead letter %d has %s with %q, not %s", got.Offset, got.Change.ID(), got.Reason, want.ID())
		}
	}
}
