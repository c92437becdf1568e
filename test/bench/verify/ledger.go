package verify

import "github.com/kubecdc/kubecdc/test/bench/corpus"

// Record is the content of a system's message, in any form.
type Record struct {
	Key     string // "resource/namespace/name"
	UID     string
	RV      uint64
	Type    corpus.Type
	Frame   bool // it begins or ends a snapshot; the other members are empty
	Control bool // it speaks of no object in another way; the other members are empty
}

// Result is how the records compare with the corpus.
type Result struct {
	Records    int `json:"records"`    // all that were read
	Lost       int `json:"lost"`       // entries without a record
	Duplicates int `json:"duplicates"` // records of an entry that had one
	OutOfOrder int `json:"outOfOrder"` // records behind a newer one of their object, or in another partition than the first
	Wrong      int `json:"wrong"`      // records that differ from the entry they name, or name none
	Frames     int `json:"frames"`     // records around snapshots
	Control    int `json:"control"`    // other control records; none is expected
	// Reason explains why the first unreadable record could not be read.
	Reason string `json:"reason,omitempty"`
}

// Ledger collects records. It is not safe for concurrent use.
type Ledger struct {
	corpus *corpus.Corpus
	seen   []bool            // by index of the entry
	last   map[string]latest // by key
	result Result
}

// latest is the newest record of an object.
type latest struct {
	rv        uint64
	partition int32
}

// NewLedger returns an empty ledger.
func NewLedger(c *corpus.Corpus) *Ledger {
	return &Ledger{corpus: c, seen: make([]bool, len(c.Entries())), last: map[string]latest{}}
}

// Add takes the next record of a partition. Order is judged by the order of the calls.
func (l *Ledger) Add(partition int32, r Record) {
	l.result.Records++
	switch {
	case r.Frame:
		l.result.Frames++
		return
	case r.Control:
		l.result.Control++
		return
	}
	entry, ok := l.corpus.ByRV(r.RV)
	if !ok || r.Key != l.corpus.Key(entry.Object) || r.UID != l.corpus.UID(entry.Object) || r.Type != entry.Type {
		l.result.Wrong++
		return
	}
	if i := l.corpus.Index(r.RV); l.seen[i] {
		l.result.Duplicates++
	} else {
		l.seen[i] = true
	}
	newest, known := l.last[r.Key]
	if known && (r.RV < newest.rv || partition != newest.partition) {
		l.result.OutOfOrder++
	}
	l.last[r.Key] = latest{rv: max(r.RV, newest.rv), partition: partition}
}

// Reject takes a record that cannot be read. The first reason of all is kept in the result.
func (l *Ledger) Reject(reason error) {
	l.result.Records++
	l.result.Wrong++
	if l.result.Reason == "" {
		l.result.Reason = reason.Error()
	}
}

// Result returns the comparison so far; what has not come counts as lost.
func (l *Ledger) Result() Result {
	r := l.result
	for _, seen := range l.seen {
		if !seen {
			r.Lost++
		}
	}
	return r
}

// Complete reports whether nothing is missing or wrong. Duplicates are allowed where the promise is at least once.
func (r Result) Complete() bool {
	return r.Lost == 0 && r.OutOfOrder == 0 && r.Wrong == 0 && r.Control == 0
}
