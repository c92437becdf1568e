package journal

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Stat is a snapshot of the journal for metrics, health and status pages.
type Stat struct {
	Oldest, Newest uint64 // offsets; Oldest is Newest+1 before the first change
	RetainedBytes  int64  // stored bytes of changes and dead letters; MaxBytes bounds it
	MaxBytes       int64
	DiskBytes      int64  // of the whole store, measured every few seconds while there are commits
	PendingBytes   int64  // appended and not yet committed, in memory
	TailBytes      int64  // recent changes in memory
	Commits        uint64 // groups committed since Open
	Frames         uint64 // frames written since Open

	// Blocked says why nothing is being journaled, in one line with the remedy; empty when all is well. Readiness
	// follows it.
	Blocked string
	Sinks   []SinkStat // by name; also sinks that only left dead letters
}

// SinkStat is the state of one sink in the journal.
type SinkStat struct {
	Name        string
	Declared    bool
	Low         uint64 // of its cursor
	DeadLetters int64
	DeadBytes   int64
}

type counts struct {
	commits, frames uint64
	disk            int64
	measured        time.Time
}

// Stat never waits for the store.
func (j *Journal) Stat() Stat {
	full := j.fs.full()
	failed := j.failed.get()
	j.mu.Lock()
	defer j.mu.Unlock()
	s := Stat{
		Oldest: j.ext.oldest, Newest: j.ext.newest,
		RetainedBytes: j.held(), MaxBytes: j.opts.MaxBytes, DiskBytes: j.counts.disk,
		PendingBytes: j.pending, TailBytes: j.tail.bytes,
		Commits: j.counts.commits, Frames: j.counts.frames,
	}
	switch {
	case failed != nil:
		s.Blocked = oneLine(failed)
	case full != "":
		s.Blocked = full
	case s.RetainedBytes >= s.MaxBytes:
		s.Blocked = fmt.Sprintf("the journal holds %d of %d bytes: sink %q must catch up, or journal.maxBytes grow", s.RetainedBytes, s.MaxBytes, j.slowest())
	}
	for _, name := range slices.Sorted(maps.Keys(j.sinks)) {
		st := j.sinks[name]
		s.Sinks = append(s.Sinks, SinkStat{Name: name, Declared: st.declared, Low: st.cursor.Low, DeadLetters: st.dead, DeadBytes: st.deadBytes})
	}
	return s
}

// slowest names the declared sink with the lowest cursor. The caller holds mu.
func (j *Journal) slowest() string {
	slowest, low := "", uint64(0)
	for _, name := range j.opts.Sinks {
		if s := j.sinks[name]; slowest == "" || s.cursor.Low < low {
			slowest, low = name, s.cursor.Low
		}
	}
	return slowest
}
