package journal

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestSinksComeAndGoWhileTheJournalRuns adds a sink, which begins with the oldest change and holds the trim, and takes one
// back, which does neither any more, nor in the next process.
func TestSinksComeAndGoWhileTheJournalRuns(t *testing.T) {
	fs := vfs.NewMem()
	j := start(t, Options{FS: fs, Sinks: []string{"main"}})
	for n := range 10 {
		j.append(observe("s", n))
	}
	j.waitFor(10)
	if err := j.Declare(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if cursor, settled, err := j.Cursor("new"); settled || err != nil || cursor.Low != 0 {
		t.Errorf("a new sink begins at %+v, %v (%v)", cursor, settled, err)
	}
	j.settle("new", event.Cursor{Low: 4})
	j.settle("main", event.Cursor{Low: 10})
	if slowest := j.slowestSink(); slowest != "new" {
		t.Errorf("%q holds the journal back", slowest)
	}
	if err := j.Declare(t.Context(), "new"); err != nil { // again
		t.Fatal(err)
	}
	if cursor, _, err := j.Cursor("new"); err != nil || cursor.Low != 4 {
		t.Errorf("cursor %+v (%v)", cursor, err)
	}
	if err := j.Withdraw(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := j.Cursor("new"); err == nil || j.slowestSink() != "main" || len(j.Stat().Sinks) != 1 {
		t.Errorf("the sink is still there (%v): %+v", err, j.Stat().Sinks)
	}
	if err := j.Settle(t.Context(), "new", event.Cursor{Low: 5}, nil); err == nil {
		t.Error("a sink that was taken back can settle")
	}
	j.end()
	j = start(t, Options{FS: fs, Sinks: []string{"main", "new"}})
	if _, settled, err := j.Cursor("new"); settled || err != nil {
		t.Errorf("its cursor is still stored (%v)", err)
	}
}

func (r *running) slowestSink() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	name, _ := slowest(r.sinks)
	return name
}
