package journal

import (
	"maps"
	"slices"
)

// Stat is a snapshot of the journal for metrics, health and status pages.
type Stat struct {
	Oldest, Newest uint64 // offsets; Oldest is Newest+1 before the first change

	RetainedBytes int64 // all that MaxBytes bounds: changes, and the following
	KnownBytes    int64 // known objects, measured every few seconds
	BodyBytes     int64 // last states, measured as well
	DeadBytes     int64 // dead letters; MaxDeadLetters bounds them
	MaxBytes      int64

	DiskBytes    int64  // of the whole store, measured every few seconds
	PendingBytes int64  // appended and not yet committed, in memory
	Commits      uint64 // groups committed since Open

	BlockedReason            string     // why nothing is being journaled, in one line with the remedy; empty when all is well
	DeadLettersBlockedReason string     // why no dead letter is taken, as well; their lanes wait
	Sinks                    []SinkStat // by name; also sinks that only left dead letters
}

// SinkStat is the state of one sink in the journal.
type SinkStat struct {
	Name        string
	DeadLetters int64
	DeadBytes   int64
}

// Stat never waits for the store, for the disk or for a bound.
func (j *Journal) Stat() Stat {
	failed := j.storeFailure.current()
	j.mu.Lock()
	defer j.mu.Unlock()
	held := j.currentSizes()
	s := Stat{
		Oldest: j.logExtent.oldest, Newest: j.logExtent.newest,
		RetainedBytes: j.logExtent.size() + held.total(), KnownBytes: held.known, BodyBytes: held.bodies, DeadBytes: held.dead,
		MaxBytes: j.opts.MaxBytes, DiskBytes: j.diskBytes, PendingBytes: j.pending, Commits: j.commits,
		BlockedReason: joinRemedy(j.blockedReason()), DeadLettersBlockedReason: joinRemedy(j.deadLettersFullReason()),
	}
	if failed != nil {
		s.BlockedReason = firstLine(failed)
	}
	for _, name := range slices.Sorted(maps.Keys(j.sinks)) {
		st := j.sinks[name]
		s.Sinks = append(s.Sinks, SinkStat{Name: name, DeadLetters: st.deadLetters, DeadBytes: st.deadBytes})
	}
	return s
}

// joinRemedy joins a reason and what to do about it.
func joinRemedy(reason, remedy string) string {
	if reason == "" {
		return ""
	}
	return reason + ": " + remedy
}
