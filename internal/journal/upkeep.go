package journal

import (
	"context"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/kubecdc/kubecdc/internal/journal/codec"
)

const (
	tickEvery       = time.Second
	measureEvery    = 5 * time.Second // how often the store is asked about its size
	spaceCheckBytes = 1 << 20         // changes after which the disk is asked for its room
	maxReservePart  = 4               // of a disk; Options.Reserve takes no more of it

	// minReserve is what the store may need beside what is kept: what was admitted and is not in its log yet, the log and
	// the tables of three memtables, and what compactions leave free.
	minReserve = 40 << 20
)

// runTicker lets time pass for what waits for nothing else: settled changes that were kept for a while, and the log of what
// readiness says.
func (j *Journal) runTicker(ctx context.Context) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		j.updateConditions()
		j.mu.Lock()
		j.trimDue = true
		j.mu.Unlock()
		j.signalCommitter()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-j.storeFailure.done:
			return
		}
	}
}

// runUpkeep asks the disk and the store how they are, and notes what is acknowledged. The store may wait for the disk under its
// own lock, so nobody waits for this.
func (j *Journal) runUpkeep(ctx context.Context) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	var measured time.Time
	for {
		j.checkDiskSpace()
		if time.Since(measured) >= measureEvery {
			j.measureSizes()
			measured = time.Now()
		}
		j.recordAcknowledged()
		j.reclaimSpace(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-j.storeFailure.done:
			return
		}
	}
}

// measureSizes asks the store about its size. What it has not written to a table yet, some MiB, is not in it.
func (j *Journal) measureSizes() {
	var s storedSizes
	for _, m := range []struct {
		first byte
		size  *int64
	}{{codec.PrefixKnown, &s.known}, {codec.PrefixBody, &s.bodies}} {
		n, err := j.db.EstimateDiskUsage([]byte{m.first}, []byte{m.first + 1})
		if err != nil {
			_ = j.checkCorruption("measure", err)
			return
		}
		*m.size = int64(n)
	}
	disk := int64(j.db.Metrics().DiskSpaceUsage())
	j.mu.Lock()
	defer j.mu.Unlock()
	j.measuredSizes, j.diskBytes = s, disk
	j.notifyWaiters()
}

// checkDiskSpace asks the disk whether the reserve is still there. What cannot be asked is taken to be large.
func (j *Journal) checkDiskSpace() {
	if j.opts.Reserve <= 0 {
		return
	}
	usage, err := j.fs.GetDiskUsage(j.opts.Dir)
	if err != nil {
		return
	}
	reserve := min(uint64(j.opts.Reserve), max(usage.TotalBytes/maxReservePart, min(minReserve, usage.TotalBytes/2)))
	j.fs.SetCompactionReserve(reserve / 2)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.diskLow {
		reserve += reserve / 4 // not in and out with every change
	}
	if low := usage.AvailBytes < reserve; low != j.diskLow {
		j.diskLow = low
		j.notifyWaiters()
	}
}

// reclaimSpace gives the disk back what trimming has freed, where the disk needs it. The store would do so by itself, but only
// after some MiB of further writes, which wait for this, and by a compaction, for which there may be no room.
func (j *Journal) reclaimSpace(ctx context.Context) {
	j.mu.Lock()
	needed := j.diskLow && j.logExtent.startBytes > j.reclaimedBytes
	start, oldest := j.logExtent.startBytes, j.logExtent.oldest
	j.mu.Unlock()
	if needed && j.db.Excise(ctx, pebble.KeyRange{Start: codec.KeyFrame(0), End: codec.KeyFrame(oldest)}) == nil {
		j.reclaimedBytes = start
		j.checkDiskSpace()
	}
}

// recordAcknowledged stores up to which write the store has acknowledged what it was given, see mark.
func (j *Journal) recordAcknowledged() {
	j.mu.Lock()
	writes := j.writes
	j.mu.Unlock()
	if err := j.ackFile.StoreWrites(writes); err != nil {
		j.opts.Logger.Warn("journal: cannot note what is acknowledged; a damaged log may go unnoticed at the next start", "err", err)
	}
}
