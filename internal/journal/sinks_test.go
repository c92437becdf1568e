package journal

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestSinksAreAddedAndRemovedWhileRunning adds a sink, which begins with the oldest change and holds the trim, and takes one
// back, which does neither any more, nor in the next process.
func TestSinksAreAddedAndRemovedWhileRunning(t *testing.T) {
	fs := vfs.NewMem()
	j := startJournal(t, Options{FS: fs, Sinks: []string{"main"}})
	for n := range 10 {
		j.mustAppend(smallObservation("s", n))
	}
	j.waitFor(10)
	if err := j.AddSink(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	if cursor, settled, err := j.Cursor("new"); settled || err != nil || cursor.Low != 0 {
		t.Errorf("a new sink begins at %+v, %v (%v)", cursor, settled, err)
	}
	j.mustSettle("new", event.Cursor{Low: 4})
	j.mustSettle("main", event.Cursor{Low: 10})
	if slowest, _ := j.slowestSink(); slowest != "new" {
		t.Errorf("%q holds the journal back", slowest)
	}
	if err := j.AddSink(t.Context(), "new"); err != nil { // again
		t.Fatal(err)
	}
	if cursor, _, err := j.Cursor("new"); err != nil || cursor.Low != 4 {
		t.Errorf("cursor %+v (%v)", cursor, err)
	}
	if err := j.RemoveSink(t.Context(), "new"); err != nil {
		t.Fatal(err)
	}
	slowest, _ := j.slowestSink()
	if _, _, err := j.Cursor("new"); err == nil || slowest != "main" || len(j.Stat().Sinks) != 1 {
		t.Errorf("the sink is still there (%v): %+v", err, j.Stat().Sinks)
	}
	if err := j.Settle(t.Context(), "new", event.Cursor{Low: 5}, nil); err == nil {
		t.Error("a sink that was taken back can settle")
	}
	j.stopAndClose()
	j = startJournal(t, Options{FS: fs, Sinks: []string{"main", "new"}})
	if _, settled, err := j.Cursor("new"); settled || err != nil {
		t.Errorf("its cursor is still stored (%v)", err)
	}
}
