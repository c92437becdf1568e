package journal

import (
	"maps"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Stat is a snapshot of the journal for metrics, health and status pages.
type Stat struct {
	Oldest, Newest uint64 // offsets; Oldest is Newest+1 before the first change

	RetainedBytes int64 // all that MaxBytes bounds: changes, and the following
	KnownBytes    int64 // known objects, measured every few seconds
	BodyBytes     int64 // bodies, measured as well
	DeadBytes     int64 // dead letters; MaxDeadLetters bounds them
	MaxBytes      int64

	DiskBytes    int64  // of the whole store, measured every few seconds
	PendingBytes int64  // appended and not yet committed, in memory
	Commits      uint64 // groups committed since Open

	Blocked         condition.Status // whether something is being journaled
	DeadLettersFull condition.Status // whether a dead letter is accepted; if not, its lane waits
	Sinks           []SinkStat       // by name; also sinks that only left dead letters
}

// SinkStat is the state of one sink in the journal.
type SinkStat struct {
	Name        string
	DeadLetters int64
	DeadBytes   int64
}

// Stat never waits for the store, for the disk or for a bound.
func (j *Journal) Stat() Stat {
	j.updateConditions()
	failed, pending := j.store.failure.currentError(), j.queue.pendingBytes() // the queue's lock comes before the view's
	j.view.RLock()
	defer j.view.RUnlock()
	extent, held := j.Log.currentExtent(), j.space.currentSizes()
	s := Stat{
		Oldest: extent.oldest, Newest: extent.newest,
		RetainedBytes: extent.sizeBytes() + held.totalBytes(), KnownBytes: held.known, BodyBytes: held.bodies, DeadBytes: held.dead,
		MaxBytes: j.space.maxBytes, DiskBytes: j.space.storeBytes(), PendingBytes: pending, Commits: j.view.commits,
		Blocked: j.space.condition.Status(), DeadLettersFull: j.DeadLetters.condition.Status(),
	}
	if failed != nil {
		s.Blocked = condition.NewStatus("journal", condition.Problem{Code: condition.JournalBroken, Cause: firstLine(failed)})
	}
	counts := j.DeadLetters.allCounts()
	for _, name := range j.SinkLedger.declaredNames() {
		if _, found := counts[name]; !found { // declared sinks are listed without dead letters too
			counts[name] = deadLetterCount{}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		s.Sinks = append(s.Sinks, SinkStat{Name: name, DeadLetters: counts[name].letters, DeadBytes: counts[name].bytes})
	}
	return s
}
