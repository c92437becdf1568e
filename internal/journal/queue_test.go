package journal

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
)

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
