package journal

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// gapsFor returns the gaps that a sink gets of what it reads from its cursor on, as "resource from-to", and their offsets.
func gapsFor(t *testing.T, j *runningJournal, sink string) (gaps []string) {
	t.Helper()
	cursor, _, err := j.Cursor(sink)
	if err != nil {
		t.Fatal(err)
	}
	for after := cursor.Low; after < j.Newest(); after++ {
		records, err := j.Read(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		if c := records[0].Change; c.Gap != nil && c.Gap.Sink == sink {
			gaps = append(gaps, fmt.Sprintf("%s %s-%s", c.Resource, c.Gap.From, c.Gap.To))
			if c.ResourceVersion != c.Gap.To || c.Cluster != "prod" {
				t.Errorf("the gap is %+v", c)
			}
		}
	}
	return gaps
}

// TestASinkThatReturnsGetsAGapForWhatWasTrimmed removes a sink, trims what happens meanwhile, and adds the sink again.
func TestASinkThatReturnsGetsAGapForWhatWasTrimmed(t *testing.T) {
	for name, settled := range map[string]uint64{"that had received everything": 10, "that had not": 7} {
		t.Run("one "+name, func(t *testing.T) {
			opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main", "other"}, ClusterName: "prod"}, MaxBytes: 64 << 10, PendingBytes: 1 << 10}
			j := startJournal(t, opts)
			for n := range 10 {
				j.mustAppend(smallObservation("pods", n+1))
			}
			j.waitFor(10)
			j.mustSettle("main", event.Cursor{Low: 10})
			j.mustSettle("other", event.Cursor{Low: settled})
			j.stopAndClose()
			opts.Sinks = []string{"main"}
			j = startJournal(t, opts)
			for n := range uint64(20) {
				for i := range 100 {
					j.mustAppend(smallObservation("pods", 100*int(n)+i+11))
				}
				j.waitFor(100*n + 110)
				j.mustSettle("main", event.Cursor{Low: 100*n + 110})
			}
			j.mustAppend(smallObservation("pods", 2011))
			j.waitFor(2011)
			if j.Oldest() < 100 {
				t.Fatalf("nothing was trimmed: %d to %d", j.Oldest(), j.Newest())
			}
			want := []string{"pods 10-2011"}
			if settled < 10 {
				want = []string{"pods -2011"} // where the changes that were not sent began is not stored
			}
			opts.Sinks = []string{"main", "other", "third"}
			for life := range 2 {
				j.stopAndClose()
				j = startJournal(t, opts)
				if got := gapsFor(t, j, "other"); !slices.Equal(got, want) {
					t.Errorf("life %d: gaps %q, want %q", life, got, want)
				}
				if cursor, _, _ := j.Cursor("other"); cursor.Low != 2011 {
					t.Errorf("life %d: it continues at %d", life, cursor.Low)
				}
			}
			if got := gapsFor(t, j, "third"); got != nil {
				t.Errorf("a new sink gets the gaps %q", got)
			}
		})
	}
}

// TestASinkThatAnOlderExporterRemovedGetsNoGap opens a journal that lacks the positions of a removed sink.
func TestASinkThatAnOlderExporterRemovedGetsNoGap(t *testing.T) {
	opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main", "other"}, ClusterName: "prod"}}
	j := startJournal(t, opts)
	j.mustAppend(smallObservation("pods", 1))
	j.waitFor(1)
	if err := j.Declare(t.Context(), Declaration{Sinks: []string{"main"}, ClusterName: "prod"}); err != nil {
		t.Fatal(err)
	}
	forget := func(g *group) error { g.sinks.removeFormer("other"); return nil }
	if err := j.queue.submit(t.Context(), forget, nil); err != nil {
		t.Fatal(err)
	}
	j.stopAndClose()
	j = startJournal(t, opts)
	if cursor, _, err := j.Cursor("other"); err != nil || cursor.Low != 0 || gapsFor(t, j, "other") != nil {
		t.Errorf("it begins at %d with the gaps %q (%v)", cursor.Low, gapsFor(t, j, "other"), err)
	}
}

// TestASeedGivesGapsToSinksThatWereNoMembers seeds a journal that declares one of two former sinks, and lacks a member.
func TestASeedGivesGapsToSinksThatWereNoMembers(t *testing.T) {
	opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main", "other", "new"}, ClusterName: "prod"}}
	j := startJournal(t, opts)
	s := podSeed(3)
	pods := s.Resources[0].Resource
	at := func(position string) []event.ResourcePosition {
		return []event.ResourcePosition{{Resource: pods, Position: position}}
	}
	s.Members = Members{
		Sinks:  []string{"main", "absent"},
		Former: []event.FormerSink{{Name: "long", Positions: at("500")}, {Name: "other", Positions: at("700")}},
	}
	j.mustSeed(s)
	if got, want := gapsFor(t, j, "other"), []string{"pods 700-900"}; !slices.Equal(got, want) {
		t.Errorf("gaps %q, want %q", got, want)
	}
	for sink, resending := range map[string]bool{"main": false, "new": false, "other": true} {
		if got := gapsFor(t, j, sink); got != nil && sink != "other" {
			t.Errorf("%s gets the gaps %q", sink, got)
		}
		if c, _, err := j.Cursor(sink); err != nil || c.Resending > c.Low != resending {
			t.Errorf("what %s holds counts as delivered: %t (%v)", sink, !resending, err)
		}
	}
	opts.Sinks = []string{"main", "absent", "long"} // absent has what the seed has, and the journal what follows
	j.stopAndClose()
	j = startJournal(t, opts)
	if got := gapsFor(t, j, "absent"); got != nil {
		t.Errorf("absent gets the gaps %q", got)
	}
	if got, want := gapsFor(t, j, "long"), []string{"pods 500-900"}; !slices.Equal(got, want) {
		t.Errorf("long gets the gaps %q, want %q", got, want)
	}
}
