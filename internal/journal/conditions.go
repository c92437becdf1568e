package journal

import (
	"fmt"
	"maps"
	"slices"

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
