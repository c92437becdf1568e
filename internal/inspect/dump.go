package inspect

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// DumpOptions select changes of a journal. The zero value selects all.
type DumpOptions struct {
	From, To  uint64   // offsets, both included; 0 is the oldest and the newest
	Limit     uint64   // maximum number; 0 is all
	Resources []string // only these, as kubectl writes them; empty is all
}

// Validate refuses a contradictory range.
func (o DumpOptions) Validate() error {
	if o.To > 0 && o.From > o.To {
		return usageErrorf("--from %d is above --to %d", o.From, o.To)
	}
	return nil
}

// DumpChanges writes the selected changes of the journal in a directory, one JSON object per line, and remarks to notes. No
// exporter may run on the journal, which is not changed.
func DumpChanges(dir string, o DumpOptions, out, notes io.Writer) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.To == 0 {
		o.To = math.MaxUint64
	}
	d := &dump{DumpOptions: o, notes: notes}
	return withJournal(dir, out, d.printChanges)
}

// dump is the state of one DumpChanges.
type dump struct {
	DumpOptions
	notes   io.Writer
	printed uint64
	line    []byte
}

// errLimitReached ends a dump at its limit.
var errLimitReached = errors.New("limit reached")

func (d *dump) printChanges(j *journal.Offline, w io.Writer) error {
	oldest, newest := j.Oldest(), j.Newest()
	switch {
	case oldest > newest:
		fmt.Fprintf(d.notes, "exporter: the journal holds no changes\n")
	case d.From > newest || d.To < oldest || d.From > 0 && d.From < oldest:
		fmt.Fprintf(d.notes, "exporter: the journal holds the changes %d to %d only\n", oldest, newest)
	}
	err := j.ForEachChange(d.From, d.To, func(r event.Record) error { return d.printRecord(w, r) })
	if errors.Is(err, errLimitReached) {
		return nil
	}
	return err
}

func (d *dump) printRecord(w io.Writer, r event.Record) error {
	if len(d.Resources) > 0 && !slices.Contains(d.Resources, r.Change.Resource.String()) {
		return nil
	}
	d.line = append(d.line[:0], `{"offset":`...)
	d.line = strconv.AppendUint(d.line, r.Offset, 10)
	d.line = append(d.line, `,"change":`...)
	d.line = append(format.AppendJSON(d.line, r.Change), '}', '\n')
	if _, err := w.Write(d.line); err != nil {
		return err
	}
	d.printed++
	if d.printed == d.Limit {
		return errLimitReached
	}
	return nil
}
