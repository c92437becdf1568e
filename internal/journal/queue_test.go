package journal

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestGroupsGrowWithTheLoad: a change that comes alone is committed at once, a few thousand a second share groups.
func TestGroupsGrowWithTheLoad(t *testing.T) {
	for _, c := range []struct {
		rate, atLeast, atMost int // changes a second, and groups for 1,000 of them
	}{
		{100, 1000, 1000}, {300, 1000, 1000}, {1000, 250, 500}, {5000, 15, 25}, {20_000, 10, 25},
	} {
		synctest.Test(t, func(t *testing.T) {
			j := startJournal(t, Options{FS: vfs.NewMem()})
			synctest.Wait() // what it begins with is committed
			before := j.Stat().Commits
			for i := range 1000 {
				change := podChange(i, 5400)
				if err := j.Append(t.Context(), event.Observation{
					Resource: resourceNamed("pods"), Scope: "pods", Changes: []*event.Change{change}, Position: change.ResourceVersion,
				}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second / time.Duration(c.rate))
			}
			if groups := int(j.Stat().Commits - before); groups < c.atLeast || groups > c.atMost {
				t.Errorf("%d changes a second: 1,000 in %d groups, expected %d to %d", c.rate, groups, c.atLeast, c.atMost)
			}
			j.stopAndClose()
		})
	}
}

// TestEvidenceIsCommittedWithOthersAndInPortions stores much at once: together, it is a few groups, each of which a change
// would wait for a bounded time.
func TestEvidenceIsCommittedWithOthersAndInPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := startJournal(t, Options{FS: vfs.NewMem()})
		synctest.Wait() // what it begins with is committed
		before := j.Stat().Commits
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				if err := j.StoreEvidence(t.Context(), []event.Evidence{{Number: uint64(i + 1), Value: make([]byte, 10<<10)}}, "", ""); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if commits := j.Stat().Commits - before; commits != 4 { // 25 of 10 KiB in each
			t.Errorf("%d commits", commits)
		}
		stored := 0
		if err := j.ForEachEvidence(func(event.Evidence) error { stored++; return nil }); err != nil || stored != 100 {
			t.Errorf("%d are stored: %v", stored, err)
		}
		j.stopAndClose()
	})
}
