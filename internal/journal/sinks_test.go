package journal

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestDeclaredSinksHoldTheTrim declares a sink, which begins with the oldest change and holds the trim, and declares it no
// longer, after which it does neither, nor in the next process.
func TestDeclaredSinksHoldTheTrim(t *testing.T) {
	fs := vfs.NewMem()
	j := startJournal(t, Options{FS: fs, Declaration: Declaration{Sinks: []string{"main"}}})
	for n := range 10 {
		j.mustAppend(smallObservation("s", n))
	}
	j.waitFor(10)
	if err := j.Declare(t.Context(), Declaration{Sinks: []string{"main", "new"}}); err != nil {
		t.Fatal(err)
	}
	if cursor, settled, err := j.Cursor("new"); settled || err != nil || cursor.Low != 0 {
		t.Errorf("a new sink begins at %+v, %v (%v)", cursor, settled, err)
	}
	j.mustSettle("new", event.Cursor{Low: 4, Resending: 8})
	j.mustSettle("main", event.Cursor{Low: 10})
	if slowest, _ := j.slowestSink(); slowest != "new" {
		t.Errorf("%q holds the journal back", slowest)
	}
	for _, again := range []Declaration{{Sinks: []string{"main", "new"}}, {Sinks: []string{"main"}, Lasting: []string{"new", "never"}}} {
		if err := j.Declare(t.Context(), again); err != nil {
			t.Fatal(err)
		}
	}
	if cursor, _, err := j.Cursor("new"); err != nil || cursor.Low != 4 {
		t.Errorf("cursor %+v (%v)", cursor, err)
	}
	if err := j.Declare(t.Context(), Declaration{Sinks: []string{"main"}}); err != nil {
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
	j = startJournal(t, Options{FS: fs, Declaration: Declaration{Sinks: []string{"main", "new"}}})
	if cursor, _, err := j.Cursor("new"); cursor.Low != 4 || cursor.Resending != 8 || err != nil || gapsFor(t, j, "new") != nil {
		t.Errorf("a sink that returns in time continues at %+v with the gaps %q (%v)", cursor, gapsFor(t, j, "new"), err)
	}
}

// redeclarations are the ways to come to other options.
var redeclarations = map[string]func(t *testing.T, j *runningJournal, to Options) *runningJournal{
	"while the journal runs": func(t *testing.T, j *runningJournal, to Options) *runningJournal {
		if err := j.Declare(t.Context(), to.Declaration); err != nil {
			t.Fatal(err)
		}
		return j
	},
	"between two runs": func(t *testing.T, j *runningJournal, to Options) *runningJournal {
		j.stopAndClose()
		return startJournal(t, to)
	},
}

// TestARenamedSinkGetsWhatTheFormerOneLacked renames a sink that has received nothing, beside one that has received
// everything: no trim may fall between the removal and the addition.
func TestARenamedSinkGetsWhatTheFormerOneLacked(t *testing.T) {
	for name, rename := range redeclarations {
		t.Run(name, func(t *testing.T) {
			opts := Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"delivers", "before"}}, MaxBytes: 64 << 10, PendingBytes: 1 << 10}
			j := startJournal(t, opts)
			for n := range 500 {
				j.mustAppend(smallObservation("s", n))
			}
			j.waitFor(500)
			j.mustSettle("delivers", event.Cursor{Low: 500})
			opts.Sinks = []string{"delivers", "after"}
			j = rename(t, j, opts)
			j.mustAppend(smallObservation("s", 500))
			j.waitFor(501)
			if oldest := j.Oldest(); oldest != 1 {
				t.Errorf("the oldest change is %d", oldest)
			}
			j.stopAndClose()
			stat := offlineStat(t, opts.Dir)
			if r := stat.Sinks[slices.IndexFunc(stat.Sinks, func(s OfflineSinkStat) bool { return s.Name == "before" })]; r.Removed.IsZero() || r.Unsent != 500 {
				t.Errorf("the removed sink is %+v", r)
			}
			opts.Sinks = []string{"delivers", "before"}
			j = startJournal(t, opts)
			j.mustSettle("before", event.Cursor{Low: 501})
			j.stopAndClose()
			stat = offlineStat(t, opts.Dir)
			if r := stat.Sinks[slices.IndexFunc(stat.Sinks, func(s OfflineSinkStat) bool { return s.Name == "before" })]; r.Unsent != 0 {
				t.Errorf("a sink that came back in time is %+v", r)
			}
		})
	}
}

// offlineStat returns what is in the journal of a stopped exporter.
func offlineStat(t *testing.T, dir string) OfflineStat {
	t.Helper()
	o, err := OpenOffline(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }() // only read
	stat, err := o.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return stat
}
