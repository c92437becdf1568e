package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// linesPerFlush is the number of lines that are aligned with each other and held in memory.
const linesPerFlush = 500

// ListDeadLetters writes the dead letters of a sink in the journal in a directory, in order of offsets and without bodies:
// as text, or as one JSON object per line. configured are the names of the configured sinks, if known. No exporter may run
// on the journal, which is not changed.
func ListDeadLetters(dir string, configured []string, sink string, asJSON bool, out io.Writer) error {
	return withJournal(dir, out, func(j *journal.Offline, w io.Writer) error {
		if err := requireKnownSink(j, configured, sink); err != nil {
			return err
		}
		if asJSON {
			return listDeadLettersJSON(j, sink, w)
		}
		return listDeadLettersText(j, sink, w)
	})
}

// ShowDeadLetter writes the dead letter of a sink at an offset as one line of JSON, with its whole change. Otherwise it is
// as [ListDeadLetters].
func ShowDeadLetter(dir string, configured []string, sink string, offset uint64, out io.Writer) error {
	return withJournal(dir, out, func(j *journal.Offline, w io.Writer) error {
		if err := requireKnownSink(j, configured, sink); err != nil {
			return err
		}
		d, ok, err := j.DeadLetter(sink, offset)
		if err != nil {
			return err
		}
		if !ok {
			return usageErrorf("sink %q has no dead letter at offset %d", sink, offset)
		}
		return writeDeadLetter(w, d)
	})
}

// TreatDeadLetters does to the journal in a directory what [SendSignal] asks of the exporter that runs on one, and writes
// what became of it. configured are the names of the configured sinks. No exporter may run on the journal.
func TreatDeadLetters(ctx context.Context, dir string, configured []string, r signals.Request, out io.Writer) error {
	s, err := app.TreatDeadLetters(ctx, dir, r, configured)
	if err != nil && s.State == "" {
		return journalExitError(err)
	}
	return writeSignal(s, err, false, out)
}

// deadLetterLine is one dead letter without its bodies.
type deadLetterLine struct {
	Offset    uint64    `json:"offset"`
	Time      time.Time `json:"time"`
	Reason    string    `json:"reason"`
	ID        string    `json:"id"`
	Type      string    `json:"type"`
	Resource  string    `json:"resource"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
}

func newDeadLetterLine(d event.DeadLetter) deadLetterLine {
	c := d.Change
	return deadLetterLine{
		Offset: d.Offset, Time: d.Time.UTC(), Reason: d.Reason, ID: c.ID(), Type: string(c.Type),
		Resource: c.Resource.String(), Namespace: c.Namespace, Name: c.Name,
	}
}

func listDeadLettersJSON(j *journal.Offline, sink string, w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return j.ForEachDeadLetter(sink, func(d event.DeadLetter) error { return e.Encode(newDeadLetterLine(d)) })
}

func listDeadLettersText(j *journal.Offline, sink string, w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "OFFSET\tTIME\tTYPE\tRESOURCE\tOBJECT\tREASON")
	n := 0
	err := j.ForEachDeadLetter(sink, func(d event.DeadLetter) error {
		l := newDeadLetterLine(d)
		object := strings.TrimPrefix(l.Namespace+"/"+l.Name, "/")
		_, err := fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n",
			l.Offset, l.Time.Format(time.RFC3339), l.Type, l.Resource, strings.Map(replaceUnprintable, orDash(object)), strings.Map(replaceUnprintable, l.Reason))
		if n++; err == nil && n%linesPerFlush == 0 {
			err = t.Flush()
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.Flush()
}

// replaceUnprintable replaces characters that would break the table; reasons quote destinations.
func replaceUnprintable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}

// writeDeadLetter writes a dead letter with its whole change. The change is copied unmodified; encoding/json would rewrite
// it.
func writeDeadLetter(w io.Writer, d event.DeadLetter) error {
	reason, err := json.Marshal(d.Reason)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "{\"offset\":%d,\"time\":%q,\"reason\":%s,\"change\":%s}\n",
		d.Offset, d.Time.UTC().Format(time.RFC3339Nano), reason, format.AppendJSON(nil, d.Change))
	return err
}
