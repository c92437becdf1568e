package journal

import (
	"maps"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Stat is a snapshot of the journal for metrics, health and status pages. Tags name metrics, see internal/admin.
type Stat struct {
	Oldest uint64 `metric:"kubecdc_journal_oldest_offset" help:"Offset of the oldest change still held."` // Newest+1 before the first
	Newest uint64 `metric:"kubecdc_journal_newest_offset" help:"Offset of the newest change."`

	RetainedBytes int64  `metric:"kubecdc_journal_retained_bytes" help:"Stored size of changes, known objects, last states, dead letters and signals."`
	KnownBytes    int64  `metric:"kubecdc_journal_known_bytes" help:"Stored size of known objects, measured every few seconds."`
	BodyBytes     int64  `metric:"kubecdc_journal_body_bytes" help:"Stored size of last states, measured every few seconds."`
	DeadBytes     int64  `metric:"kubecdc_journal_dead_letter_bytes" help:"Stored size of dead letters; journal.maxDeadLetters bounds it."`
	MaxBytes      int64  `metric:"kubecdc_journal_max_bytes" help:"Bound of kubecdc_journal_retained_bytes (journal.maxBytes)."`
	DiskBytes     int64  `metric:"kubecdc_journal_disk_bytes" help:"Size of the journal's store on disk, measured every few seconds."`
	PendingBytes  int64  `metric:"kubecdc_journal_pending_bytes" help:"Changes in memory that are not committed yet."`
	Commits       uint64 `metric:"kubecdc_journal_commits_total" help:"Groups committed."`

	Blocked         condition.Status // whether something is being journaled
	DeadLettersFull condition.Status // whether a dead letter is accepted; if not, its lane waits
	Sinks           []SinkStat       // by name; also sinks that only left dead letters
}

// SinkStat is the state of one sink in the journal.
type SinkStat struct {
	Name        string `label:"sink"`
	DeadLetters int64  `metric:"kubecdc_sink_dead_letters_kept" help:"Dead letters in the journal, of earlier runs too."`
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
