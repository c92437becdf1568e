package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Conditions of a journal that are stored, so that they are the same whether an exporter runs on it or not.

// Recovered returns the condition of a journal whose broken store was set aside; reason is that of the [Recovery], "" if
// there is none.
func Recovered(reason string) condition.Status {
	p := condition.Problem{}
	if reason != "" {
		p.Code = condition.JournalRecovered
		p.Cause = p.Code.Kind().Message + ": " + reason
	}
	return condition.NewStatus("journal", p)
}

// Conditions returns the conditions of the journal, and of the sinks with dead letters.
func (s Stat) Conditions() []condition.Status {
	all := []condition.Status{s.Blocked, s.DeadLettersFull}
	for _, sink := range s.Sinks {
		p := condition.Problem{
			Code: condition.DeadLettersKept, Cause: "1 change was permanently rejected and is kept as a dead letter",
			Remedy: "exporter deadletters list --sink " + sink.Name + " has the reasons; then retry or discard them",
		}
		if sink.DeadLetters > 1 {
			p.Cause = fmt.Sprintf("%d changes were permanently rejected and are kept as dead letters", sink.DeadLetters)
		}
		if sink.DeadLetters > 0 {
			all = append(all, condition.NewStatus("sink/"+sink.Name, p))
		}
	}
	return all
}

// deadLettersFull returns why no further dead letter fits; zero if one does.
func deadLettersFull(counts map[string]deadLetterCount, maxBytes int64) condition.Problem {
	largest, total := "", int64(0)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		total += counts[name].bytes
		if counts[name].bytes > counts[largest].bytes {
			largest = name
		}
	}
	if total < maxBytes {
		return condition.Problem{}
	}
	return condition.Problem{
		Code:  condition.DeadLettersFull,
		Cause: fmt.Sprintf("the dead letters in the journal have reached journal.maxDeadLetters, most of them of sink %q", largest),
		Remedy: fmt.Sprintf("exporter deadletters list --sink %s has the reasons; then exporter deadletters retry or discard, "+
			"with --all for every one", largest),
	}
}

// journalFull returns the problem of a journal at its bound: how many bytes are changes, and what else is stored.
func journalFull(slowest string, changes, others int64) condition.Problem {
	p := condition.Problem{Code: condition.JournalFull, LosesHistory: true}
	p.Cause = fmt.Sprintf("the journal has reached journal.maxBytes with changes that sink %q has not settled", slowest)
	if changes < others {
		p.Cause = fmt.Sprintf("the journal has reached journal.maxBytes, most of it are known objects, last states and dead letters, "+
			"and sink %q is the furthest behind", slowest)
	}
	return p
}

// Conditions returns the conditions of the journal as it is stored, by the bounds of the configuration; 0 if one is not
// known.
func (s *OfflineStat) Conditions(maxBytes, maxDeadLetters int64) []condition.Status {
	stored, counts, slowest, most := Stat{}, map[string]deadLetterCount{}, "", uint64(0)
	for _, sink := range s.Sinks {
		stored.Sinks = append(stored.Sinks, sink.SinkStat)
		counts[sink.Name] = deadLetterCount{letters: sink.DeadLetters, bytes: sink.DeadBytes}
		if sink.Settled && sink.Backlog > most {
			slowest, most = sink.Name, sink.Backlog
		}
	}
	// At the bound there is no space for the next change, whose size is not known here: 1 % of the bound counts as none.
	if maxBytes > 0 && s.RetainedBytes >= maxBytes-maxBytes/100 && slowest != "" {
		p := journalFull(slowest, s.ChangeBytes, s.RetainedBytes-s.ChangeBytes)
		p.LosesHistory = false // nothing is read now in any case
		stored.Blocked = condition.NewStatus("journal", p)
	}
	if maxDeadLetters > 0 {
		stored.DeadLettersFull = condition.NewStatus("journal", deadLettersFull(counts, maxDeadLetters))
	}
	all := stored.Conditions()
	if s.Recovery != nil {
		all = append(all, Recovered(s.Recovery.Reason))
	}
	return all
}

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
		MaxBytes: j.space.maxBytes, DiskBytes: j.space.diskBytes.Load(), PendingBytes: pending, Commits: j.view.commits,
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

// Bounds of a journal that is opened to be edited: nothing is trimmed, and nothing waits for space.
const (
	keepEverything = 100 * 365 * 24 * time.Hour
	unbounded      = 1 << 60
)

// EditStopped opens the journal of an exporter that does not run, calls edit, and closes it. The declared sinks stay as they
// are, and nothing is trimmed. Its errors are those of [OpenOffline] and of edit; here the lock is exclusive.
func EditStopped(ctx context.Context, dir string, edit func(*Journal) error) error {
	if err := checkPresent(dir); err != nil {
		return err
	}
	j, err := openStopped(dir)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- j.Run(running) }()
	err = edit(j)
	stop()
	return errors.Join(err, <-done, j.Close())
}

// openStopped is [Open] without a declaration, for a store that can be read: a broken one is left as it is.
func openStopped(dir string) (*Journal, error) {
	opts := Options{
		Dir: dir, KeepSettled: keepEverything, MaxBytes: unbounded, MaxDeadLetters: unbounded, Logger: slog.New(slog.DiscardHandler),
	}.withDefaults()
	s, err := lockStore(opts)
	if err != nil {
		return nil, err
	}
	j := newJournal(s, opts)
	if err = checkReadable(dir); err == nil {
		if err = s.tryOpen(j.loadParts); err != nil {
			err = explainOpenError(dir, err)
		}
	}
	if err != nil {
		s.decoder.Close()
		return nil, errors.Join(err, s.lock.Close())
	}
	return j, nil
}

// checkReadable opens the store for reading only, so that one that cannot be read is not written to. The caller has locked
// the directory.
func checkReadable(dir string) error {
	o, err := openUnlocked(dir)
	if err != nil {
		return err
	}
	o.lock = disk.NopLock{}
	return o.Close()
}
