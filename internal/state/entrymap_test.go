package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestEntryMapBehavesLikeMap applies random changes to an entryMap and to a map, with few and many hash collisions.
func TestEntryMapBehavesLikeMap(t *testing.T) {
	for _, hashes := range []uint64{1, 7, 1 << 40} {
		t.Run(fmt.Sprint(hashes), func(t *testing.T) {
			random := rand.New(rand.NewPCG(hashes, 2))
			p, model := newEntryMap(), map[string]string{}
			for range 40_000 {
				n := random.IntN(300)
				key, hash := fmt.Sprint("key ", n), uint64(n*7919)%hashes
				value := fmt.Sprint(random.Uint64() >> random.IntN(60))
				if random.IntN(3) == 0 {
					p.delete(hash, []byte(key))
					delete(model, key)
				} else {
					p.set(hash, []byte(key), []byte(value))
					model[key] = value
				}
				probe := random.IntN(300)
				got, ok := p.get(uint64(probe*7919)%hashes, fmt.Append(nil, "key ", probe))
				if want, known := model[fmt.Sprint("key ", probe)]; ok != known || string(got) != want {
					t.Fatalf("key %d is %q %v, want %q %v", probe, got, ok, want, known)
				}
			}
			all := map[string]string{}
			p.eachEntry(func(_ uint64, e entry) { all[string(e.key())] = string(e.value()) })
			if !maps.Equal(all, model) || p.len() != len(model) {
				t.Errorf("%d entries, %d counted, want %d", len(all), p.len(), len(model))
			}
			var keys []string
			for r := p.sortedRun(); len(r.order) > 0; r.order = r.order[1:] {
				keys = append(keys, string(r.firstEntry().key()))
			}
			if !slices.Equal(keys, slices.Sorted(maps.Keys(model))) {
				t.Errorf("%d keys are not in order", len(keys))
			}
			if len(p.arena) > 64<<10 {
				t.Errorf("%d bytes for %d entries", len(p.arena), len(model))
			}
		})
	}
}

// TestKnownObjectsAreSorted checks the order in which the journal loads fastest.
func TestKnownObjectsAreSorted(t *testing.T) {
	table := newTable()
	for _, n := range rand.Perm(3000) {
		table.applyEntry(sinks.StateEntry{Key: encodeKey(keyKnown, 1, fmt.Sprintf("ns/%05d", n)), Value: appendKnown(nil, "u", "1")})
	}
	var keys []string
	if err := table.eachKnown(func(_ uint64, k event.Known) error { keys = append(keys, k.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(keys) != 3000 || !slices.IsSorted(keys) {
		t.Errorf("%d keys, sorted: %v", len(keys), slices.IsSorted(keys))
	}
}
