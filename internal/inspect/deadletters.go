package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
)

// linesPerFlush is the number of lines that are aligned with each other and held in memory.
const linesPerFlush = 500

// DeadLetters are those of a sink: of the exporter that runs, or of the journal in a directory, if none answers there.
type DeadLetters struct {
	Client     *signals.Client
	Dir        string   // "": the client is of another machine
	Configured []string // names of the configured sinks, if known
	Sink       string
}

// List writes the dead letters in order of offsets and without bodies: as text, or as one JSON object a line.
func (l DeadLetters) List(ctx context.Context, asJSON bool, out io.Writer) error {
	return l.withReader(ctx, out, func(read letterReader, w io.Writer) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		if !asJSON {
			fmt.Fprintln(t, "OFFSET\tTIME\tTYPE\tRESOURCE\tOBJECT\tREASON")
		}
		for n, after := 0, uint64(0); ; {
			lines, err := read(0, after)
			if err != nil || len(lines) == 0 {
				return errors.Join(err, t.Flush())
			}
			for _, line := range lines {
				var d struct {
					Offset                                  uint64
					Time                                    time.Time
					Reason, Type, Resource, Namespace, Name string
				}
				if err := json.Unmarshal(line, &d); err != nil {
					return err
				}
				if after = d.Offset; asJSON {
					fmt.Fprintf(w, "%s\n", line)
					continue
				}
				object := strings.TrimPrefix(d.Namespace+"/"+d.Name, "/")
				fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n", d.Offset, d.Time.Format(time.RFC3339), d.Type, d.Resource,
					strings.Map(replaceUnprintable, orDash(object)), strings.Map(replaceUnprintable, d.Reason))
				if n++; n%linesPerFlush == 0 {
					if err := t.Flush(); err != nil {
						return err
					}
				}
			}
		}
	})
}

// Show writes the dead letter at an offset as one line of JSON, with its whole change.
func (l DeadLetters) Show(ctx context.Context, offset uint64, out io.Writer) error {
	return l.withReader(ctx, out, func(read letterReader, w io.Writer) error {
		lines, err := read(offset, 0)
		for _, line := range lines {
			fmt.Fprintf(w, "%s\n", line)
		}
		return err
	})
}

// Treat retries or discards dead letters, and writes what became of that.
func (l DeadLetters) Treat(ctx context.Context, r signals.Request, asJSON bool, out io.Writer) error {
	r.Sink = l.Sink
	s, err := l.Client.Submit(ctx, r)
	if l.isStopped(err) {
		if s, err = app.TreatDeadLetters(ctx, l.Dir, r, l.Configured); err != nil && s.State == "" {
			return journalExitError(err)
		}
	}
	return writeSignal(s, err, asJSON, out)
}

// letterReader returns dead letters as [signals.Handler] does.
type letterReader func(offset, after uint64) ([]json.RawMessage, error)

// withReader calls use with a reader of the exporter that runs, or of the journal.
func (l DeadLetters) withReader(ctx context.Context, out io.Writer, use func(letterReader, io.Writer) error) error {
	if _, err := l.Client.List(ctx); l.isStopped(err) {
		return withJournal(l.Dir, out, func(j *journal.Offline, w io.Writer) error {
			if err := requireKnownSink(j, l.Configured, l.Sink); err != nil {
				return err
			}
			return usageIfInvalid(use(func(offset, after uint64) ([]json.RawMessage, error) {
				return app.ReadDeadLetters(j, l.Sink, offset, after)
			}, w))
		})
	}
	err := use(func(offset, after uint64) ([]json.RawMessage, error) {
		return l.Client.Letters(ctx, l.Sink, offset, after)
	}, out)
	if err == nil {
		return nil
	}
	return signalExitError(usageIfInvalid(err))
}

// usageIfInvalid gives what asks for something that is not there its exit code.
func usageIfInvalid(err error) error {
	var invalid *signals.InvalidError
	if errors.As(err, &invalid) {
		return usageErrorf("%s", invalid.Reason)
	}
	return err
}

// isStopped reports whether no exporter answers, so that the journal may be free.
func (l DeadLetters) isStopped(err error) bool {
	var unanswered *signals.UnansweredError
	return l.Dir != "" && errors.As(err, &unanswered)
}

// replaceUnprintable replaces characters that would break the table; reasons quote destinations.
func replaceUnprintable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}
