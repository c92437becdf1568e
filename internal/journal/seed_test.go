package journal

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// podSeed is a seed of n known objects.
func podSeed(n int) Seed {
	r := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	return Seed{
		ID:        fmt.Sprint(n),
		Cluster:   "cluster",
		Resources: []event.StoredResource{{Resource: r, Scopes: []event.StoredScope{{ID: "pods", Position: "900"}}}},
		Known: func(each func(string, event.Known) error) error {
			for i := range n {
				k := event.Known{Key: fmt.Sprintf("ns/p%07d", i), UID: fmt.Sprint("u", i), ResourceVersion: fmt.Sprint(i)}
				if i%3 == 0 {
					k.EmittedElsewhere = event.AppendEmittedVersion("", event.EmittedVersion{UID: k.UID, ResourceVersion: "901"})
				}
				if err := each("pods", k); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (r *runningJournal) mustSeed(s Seed) {
	r.t.Helper()
	if err := r.Seed(r.t.Context(), s); err != nil {
		r.t.Fatal(err)
	}
}

func TestASeededJournalHasTheSeedAndNothingFromBefore(t *testing.T) {
	opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}}
	j := startJournal(t, opts)
	for n := range 5 {
		j.mustAppend(smallObservation("deployments.apps", n))
	}
	j.waitFor(5)
	j.mustSeed(podSeed(30_000))
	for life := range 2 {
		known, scope := j.loadStored("pods")
		if len(known) != 30_000 || scope.Position != "900" || known[3].EmittedElsewhere != "u3 901 " || known[4].EmittedElsewhere != "" {
			t.Fatalf("life %d: %d objects, %+v at %+v", life, len(known), known[3:5], scope)
		}
		if before, scope := j.loadStored("deployments.apps"); len(before) > 0 || scope.ID != "" {
			t.Errorf("life %d: %v %v are left from before", life, before, scope)
		}
		if cluster, _ := j.Cluster(); cluster != "cluster" {
			t.Errorf("life %d: cluster %q", life, cluster)
		}
		if now, _ := j.ID(); now != "30000" {
			t.Errorf("life %d: ID %q", life, now)
		}
		if j.Oldest() != 6 || j.Newest() != 5 || j.LowestCursor() != 5 {
			t.Errorf("life %d: %d to %d, settled to %d", life, j.Oldest(), j.Newest(), j.LowestCursor())
		}
		if m := j.Checkpoint(); m.Newest != 5 || len(m.Resources) != 1 || m.Resources[0].Scopes[0].Position != "900" {
			t.Errorf("life %d: marking %+v", life, m)
		}
		if life == 0 {
			j.stopAndClose()
			j = startJournal(t, opts)
		}
	}
	j.mustAppend(smallObservation("pods", 7))
	if got := j.readTo(5, 6); got[0].Offset != 6 {
		t.Errorf("the first change after a seed has the offset %d", got[0].Offset)
	}
}

func TestACrashWithinASeedLeavesAnEmptyJournal(t *testing.T) {
	opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}}
	j := startJournal(t, opts)
	j.mustAppend(smallObservation("pods", 1))
	j.waitFor(1)
	broken := errors.New("broken off")
	seed := podSeed(0)
	seed.Known = func(each func(string, event.Known) error) error {
		return errors.Join(podSeed(30_000).Known(each), broken)
	}
	if err := j.Seed(t.Context(), seed); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	j.stopAndClose()
	j = startJournal(t, opts)
	known, scope := j.loadStored("pods")
	if id, err := j.ID(); id != "" || err != nil || len(known) != 0 || scope.ID != "" || j.Newest() != 1 {
		t.Errorf("ID %q %v, %d objects, scope %+v, newest %d", id, err, len(known), scope, j.Newest())
	}
	j.mustSeed(podSeed(2))
	if known, _ := j.loadStored("pods"); len(known) != 2 {
		t.Errorf("%d objects", len(known))
	}
}

func TestAJournalKeepsItsID(t *testing.T) {
	opts := Options{FS: vfs.NewMem()}
	j := startJournal(t, opts)
	before, err := j.ID()
	set := j.SetID(t.Context(), "x")
	j.stopAndClose()
	j = startJournal(t, opts)
	after, err2 := j.ID()
	if before != "" || after != "x" || errors.Join(err, set, err2) != nil {
		t.Errorf("%q, then %q: %v %v %v", before, after, err, set, err2)
	}
}

// Positions that a marking names are never ahead of its changes, whenever it is taken.
func TestCheckpointIsConsistent(t *testing.T) {
	j := startJournal(t, Options{FS: vfs.NewMem()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ctx.Err() == nil; n++ {
			j.mustAppend(smallObservation("pods", n))
		}
	}()
	j.waitFor(20)
	for range 2000 {
		m := j.Checkpoint()
		if at := m.Resources[0].Scopes[0].Position; at != fmt.Sprint(m.Newest) {
			t.Errorf("position %s with the newest change %d", at, m.Newest)
			break
		}
	}
	objects := map[string]string{}
	m, err := j.ForEachKnown(t.Context(), func(_ string, k event.Known) error {
		objects[k.Key] = k.ResourceVersion
		return nil
	})
	cancel()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for n := 1; n <= int(m.Newest); n++ {
		c := journaltest.SmallChange(n)
		want[c.Name] = c.ResourceVersion
	}
	if !reflect.DeepEqual(objects, want) || m.Resources[0].Scopes[0].Position != fmt.Sprint(m.Newest) {
		t.Errorf("inventory at %d: %v, want %v", m.Newest, objects, want)
	}
}

func TestSeedHasNoBodiesUntilFilled(t *testing.T) {
	opts := Options{FS: vfs.NewMem(), Declaration: Declaration{Sinks: []string{"main"}}}
	j := startJournal(t, opts)
	bodiless := func(want bool) {
		t.Helper()
		stored, err := j.LoadResource("pods", nil)
		if err != nil || stored.BodiesMissing != want {
			t.Fatalf("bodiless %v (%v)", stored.BodiesMissing, err)
		}
	}
	bodiless(false)
	j.mustSeed(podSeed(1))
	j.stopAndClose()
	j = startJournal(t, opts)
	bodiless(true)
	if err := j.RecordBodiesFilled(t.Context(), "pods"); err != nil {
		t.Fatal(err)
	}
	bodiless(false)
	j.mustSeed(podSeed(1))
	bodiless(true)
	if err := j.DropResource(t.Context(), "pods"); err != nil {
		t.Fatal(err)
	}
	bodiless(false)
}
