package journal

import (
	"context"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

const (
	// minChangeShare is the part of MaxBytes that changes have at least. Known objects and bodies cannot be bounded: were they
	// to leave no space for changes, the journal could never continue.
	minChangeShare = 8

	spaceCheckBytes = 1 << 20 // of changes, after which the disk is asked for its free space
	maxReservePart  = 4       // of a disk; Options.Reserve takes no more of it

	// minReserve is what the store may need beside what is kept: what was admitted and is not in its log yet, the log and
	// the tables of three memtables, and what compactions leave free.
	minReserve = 40 << 20
)

// storedSizes are the stored bytes of everything but changes; all but dead letters as they were measured last.
type storedSizes struct{ known, bodies, signals, dead int64 }

func (s storedSizes) totalBytes() int64 { return s.known + s.bodies + s.signals + s.dead }

// spaceGuard bounds what is stored, by Options.MaxBytes and by the free space of the disk (I6). It admits observations, and
// explains why it does not. Safe for concurrent use.
type spaceGuard struct {
	store       *store
	log         *Log
	sinks       *SinkLedger
	deadLetters *DeadLetters
	changed     *broadcast
	view        *view
	maxBytes    int64
	reserve     int64 // as configured
	condition   *condition.Condition

	checkedAt      uint64 // of the committer's goroutine: stored bytes when it last asked the disk
	reclaimedBytes uint64 // of the upkeep's goroutine: stored bytes ever trimmed and given back to the disk

	mu        sync.Mutex
	diskLow   bool        // the disk has less than the reserve left
	measured  storedSizes // without dead letters
	diskBytes int64       // of the whole store
}

// currentSizes are the stored bytes of now.
func (g *spaceGuard) currentSizes() storedSizes {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.measured
	s.dead = g.deadLetters.totalBytes()
	return s
}

// storeBytes are the bytes of the whole store on disk, as measured last.
func (g *spaceGuard) storeBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.diskBytes
}

// changeCapacity is how many bytes of changes may be retained.
func (g *spaceGuard) changeCapacity() int64 {
	return max(g.maxBytes-g.currentSizes().totalBytes(), g.maxBytes/minChangeShare)
}

// isDiskLow reports whether the disk has less than the reserve left.
func (g *spaceGuard) isDiskLow() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.diskLow
}

// hasSpace reports whether one more observation may be appended.
func (g *spaceGuard) hasSpace() bool {
	g.view.RLock()
	defer g.view.RUnlock()
	return !g.isDiskLow() && !g.isFull()
}

// hasSpareSpace reports whether something may be appended that can wait: the second half of the bound is for what is watched
// while a sink is away.
func (g *spaceGuard) hasSpareSpace() bool {
	g.view.RLock()
	defer g.view.RUnlock()
	return !g.isDiskLow() && !g.holdsMoreThan(g.changeCapacity()/2)
}

// isFull reports whether there is no space for a change. Requires the view.
func (g *spaceGuard) isFull() bool { return g.holdsMoreThan(g.changeCapacity()) }

// holdsMoreThan reports whether changes take so many bytes. While no sink is behind it is false: waiting could not make any
// space. Requires the view.
func (g *spaceGuard) holdsMoreThan(bytes int64) bool {
	extent := g.log.currentExtent()
	if extent.sizeBytes() < bytes {
		return false
	}
	slowest, low := g.sinks.slowestSink()
	return slowest == "" || low < extent.newest
}

// blockingProblem returns why Append waits for more than the disk's next fsync; zero when it does not. Requires the view.
func (g *spaceGuard) blockingProblem() condition.Problem {
	slowest, _ := g.sinks.slowestSink()
	p := condition.Problem{LosesHistory: true}
	switch {
	case g.store.fs.IsFull():
		p.Code, p.Cause = condition.JournalDiskFull, "the journal's disk is full"
	case g.isDiskLow():
		p.Code = condition.JournalDiskLow
		p.Cause = fmt.Sprintf("the journal's disk has no more left than journal.reserve, and sink %q is the furthest behind", slowest)
	case !g.isFull():
		return condition.Problem{}
	default:
		return journalFull(slowest, g.log.currentExtent().sizeBytes(), g.currentSizes().totalBytes())
	}
	return p
}

// updateCondition sets whether Append is blocked.
func (g *spaceGuard) updateCondition() {
	g.view.RLock()
	p := g.blockingProblem()
	held := g.log.currentExtent().sizeBytes() + g.currentSizes().totalBytes()
	g.view.RUnlock()
	g.condition.Update(p, "bytes", held, "maxBytes", g.maxBytes)
}

// measureSizes asks the store about its size. The newest bytes, some MiB that are in no table yet, are not in it.
func (g *spaceGuard) measureSizes() {
	var s storedSizes
	for _, m := range []struct {
		first byte
		size  *int64
	}{{codec.PrefixKnown, &s.known}, {codec.PrefixBody, &s.bodies}} {
		n, err := g.store.db.EstimateDiskUsage([]byte{m.first}, []byte{m.first + 1})
		if err != nil {
			_ = g.store.checkCorruption("measure", err)
			return
		}
		*m.size = int64(n)
	}
	_, size, err := loadSignals(g.store.storeReader)
	_ = g.store.checkCorruption("measure", err)
	s.signals = size
	disk := int64(g.store.db.Metrics().DiskSpaceUsage())
	g.mu.Lock()
	g.measured, g.diskBytes = s, disk
	g.mu.Unlock()
	g.changed.notifyAll()
}

// checkDiskAfter asks the disk for its free space when enough changes were stored since the last time; endBytes are the
// stored bytes of all changes ever written. Of the committer's goroutine.
func (g *spaceGuard) checkDiskAfter(endBytes uint64) {
	if endBytes-g.checkedAt > spaceCheckBytes {
		g.checkedAt = endBytes
		g.checkDisk()
	}
}

// checkDisk asks the disk whether the reserve is still there. A disk that cannot be asked counts as large.
func (g *spaceGuard) checkDisk() {
	if g.reserve <= 0 {
		return
	}
	usage, err := g.store.fs.GetDiskUsage(g.store.dir)
	if err != nil {
		return
	}
	reserve := min(uint64(g.reserve), max(usage.TotalBytes/maxReservePart, min(minReserve, usage.TotalBytes/2)))
	g.store.fs.SetCompactionReserve(reserve / 2)
	g.mu.Lock()
	if g.diskLow {
		reserve += reserve / 4 // hysteresis
	}
	low := usage.AvailBytes < reserve
	changed := low != g.diskLow
	g.diskLow = low
	g.mu.Unlock()
	if changed {
		g.changed.notifyAll()
	}
}

// reclaimSpace gives the disk back what trimming has freed, if the disk needs it. The store would do so by itself, but only
// after some MiB of further writes, which wait for this space, and by a compaction, for which there may be no space. Of the
// upkeep's goroutine.
func (g *spaceGuard) reclaimSpace(ctx context.Context) {
	extent := g.log.currentExtent()
	if !g.isDiskLow() || extent.startBytes <= g.reclaimedBytes {
		return
	}
	if g.store.db.Excise(ctx, pebble.KeyRange{Start: codec.KeyFrame(0), End: codec.KeyFrame(extent.oldest)}) == nil {
		g.reclaimedBytes = extent.startBytes
		g.checkDisk()
	}
}
