package inspect

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// withJournal opens the journal in a directory for reading, calls read with a buffered writer, and closes the journal.
func withJournal(dir string, out io.Writer, read func(*journal.Offline, io.Writer) error) error {
	j, err := journal.OpenOffline(dir)
	if err != nil {
		return journalExitError(err)
	}
	w := bufio.NewWriterSize(out, 64<<10)
	return exit.Default(exit.Runtime, errors.Join(read(j, w), w.Flush(), j.Close()))
}

// journalExitError adds the exit code to an error at opening a journal, and the remedy if an exporter has locked it.
func journalExitError(err error) error {
	switch {
	case errors.Is(err, journal.ErrLocked):
		return exit.With(exit.Environment, fmt.Errorf("%w; stop the exporter first, or read the numbers of a running one from its status page (admin.listen) and use exporter signal", err))
	case errors.Is(err, journal.ErrBroken):
		return exit.With(exit.Runtime, err)
	}
	return exit.With(exit.Environment, err)
}

// requireKnownSink refuses a sink that neither the configuration nor the journal contains, most likely a misspelt name.
func requireKnownSink(j *journal.Offline, configured []string, sink string) error {
	names := append(j.Sinks(), configured...)
	if slices.Contains(names, sink) {
		return nil
	}
	slices.Sort(names)
	return usageErrorf("no sink %q here; there are: %s", sink, orDash(strings.Join(slices.Compact(names), ", ")))
}

// usageErrorf returns an error about wrong arguments.
func usageErrorf(format string, args ...any) error {
	return exit.With(exit.Usage, fmt.Errorf(format, args...))
}

// WriteJSON writes a result as JSON that people read, too.
func WriteJSON(w io.Writer, result any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(result)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

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

// WriteJournalStat writes the size of the journal in a directory, its scopes and the progress of each sink, as text or as
// JSON. bounds are those of the configuration; zero without one. No exporter may run on the journal, which is not changed.
func WriteJournalStat(dir string, bounds JournalBounds, asJSON bool, out io.Writer) error {
	return withJournal(dir, out, func(j *journal.Offline, w io.Writer) error {
		s, err := j.Stat()
		if err != nil {
			return err
		}
		report := newJournalReport(dir, s, bounds)
		if asJSON {
			return WriteJSON(w, report)
		}
		return report.writeText(w)
	})
}

// JournalBounds is what a configuration adds to a report.
type JournalBounds struct {
	Sinks                    []string // the configured ones; nil: not known
	MaxBytes, MaxDeadLetters int64    // 0: not known
}

// JournalReport is the output of [WriteJournalStat]; its JSON form is documented in docs/journal.md.
type JournalReport struct {
	Dir           string             `json:"dir"`
	Conditions    []condition.Report `json:"conditions"`
	Oldest        uint64             `json:"oldest"`
	Newest        uint64             `json:"newest"`
	Changes       uint64             `json:"changes"`
	RetainedBytes int64              `json:"retainedBytes"`
	DiskBytes     int64              `json:"diskBytes"`
	Recovery      *journal.Recovery  `json:"recovery,omitempty"`
	Resources     []JournalResource  `json:"resources"`
	Sinks         []JournalSink      `json:"sinks"`
}

// JournalResource is the stored state of a resource.
type JournalResource struct {
	Name       string         `json:"name"`
	Version    string         `json:"version"`
	Kind       string         `json:"kind"`
	Known      int64          `json:"known"`
	KnownBytes int64          `json:"knownBytes"`
	Bodies     int64          `json:"bodies"`
	BodyBytes  int64          `json:"bodyBytes"`
	Scopes     []JournalScope `json:"scopes"`
}

// JournalScope is a resource with its selectors.
type JournalScope struct {
	Name     string `json:"name"`
	Position string `json:"position"`
	Snapshot string `json:"snapshot"`
	Lost     string `json:"lost"`
}

// JournalSink is the progress of a sink.
type JournalSink struct {
	Name        string  `json:"name"`
	Configured  *bool   `json:"configured,omitempty"` // nil: no configuration was given
	Cursor      *uint64 `json:"cursor"`               // nil: it has none
	LanesAhead  int     `json:"lanesAhead"`
	Backlog     *uint64 `json:"backlog"` // nil: it has no cursor and is not expected to get one
	DeadLetters int64   `json:"deadLetters"`
	DeadBytes   int64   `json:"deadBytes"`

	Removed *time.Time `json:"removed,omitempty"` // when it was removed from the configuration before it had received everything
	Unsent  uint64     `json:"unsent,omitempty"`  // changes that were not sent to it because of that
}

// newJournalReport combines the stored state with the configuration.
func newJournalReport(dir string, s journal.OfflineStat, bounds JournalBounds) *JournalReport {
	configured := bounds.Sinks
	r := &JournalReport{
		Conditions: condition.Reports(slices.Concat(s.Conditions(bounds.MaxBytes, bounds.MaxDeadLetters), pausedSubjects(s)), time.Now()),
		Dir:        dir, Oldest: s.Oldest, Newest: s.Newest, Changes: s.ChangeCount(), RetainedBytes: s.RetainedBytes, DiskBytes: s.DiskBytes,
		Recovery: s.Recovery, Resources: []JournalResource{}, Sinks: []JournalSink{},
	}
	for _, stored := range s.Resources {
		r.Resources = append(r.Resources, newJournalResource(stored))
	}
	stored := slices.Clone(s.Sinks)
	for _, name := range configured {
		if !slices.ContainsFunc(stored, func(k journal.OfflineSinkStat) bool { return k.Name == name }) {
			stored = append(stored, journal.OfflineSinkStat{SinkStat: journal.SinkStat{Name: name}, Backlog: s.ChangeCount()})
		}
	}
	slices.SortFunc(stored, func(a, b journal.OfflineSinkStat) int { return strings.Compare(a.Name, b.Name) })
	for _, k := range stored {
		r.Sinks = append(r.Sinks, newJournalSink(k, configured))
	}
	return r
}

// pausedSubjects returns the conditions of the sinks and rules that are paused by the signals in a journal. Signals that
// cannot be read pause none: the exporter does not start with them.
func pausedSubjects(s journal.OfflineStat) (all []condition.Status) {
	book, _ := signals.Decode(s.Signals)
	backlog := map[string]uint64{}
	for _, k := range s.Sinks {
		backlog[k.Name] = k.Backlog
	}
	for _, pause := range book.Signals {
		_, isStored := backlog[pause.Sink]
		if pause.Kind == signals.Pause && pause.State == signals.Active && !pause.IsDue(time.Now()) && (isStored || pause.Rule != "") {
			all = append(all, pause.PausedStatus(backlog[pause.Sink]))
		}
	}
	return all
}

func newJournalResource(r journal.ResourceStat) JournalResource {
	report := JournalResource{
		Name: r.Name, Version: r.Resource.Version, Kind: r.Resource.Kind, Known: r.Known, KnownBytes: r.KnownBytes,
		Bodies: r.Bodies, BodyBytes: r.BodyBytes, Scopes: []JournalScope{},
	}
	for _, s := range r.Scopes {
		report.Scopes = append(report.Scopes, JournalScope{Name: s.ID, Position: s.Position, Snapshot: s.Snapshot, Lost: s.LostReason})
	}
	return report
}

func newJournalSink(k journal.OfflineSinkStat, configured []string) JournalSink {
	r := JournalSink{Name: k.Name, LanesAhead: len(k.Cursor.Lanes), DeadLetters: k.DeadLetters, DeadBytes: k.DeadBytes}
	expected := k.Settled
	if configured != nil {
		expected = slices.Contains(configured, k.Name)
		r.Configured = &expected
	}
	if k.Settled {
		r.Cursor = &k.Cursor.Low
	}
	if expected {
		r.Backlog = &k.Backlog
	}
	if r.Unsent = k.Unsent; k.Unsent > 0 {
		r.Removed = &k.Removed
	}
	return r
}

func (r *JournalReport) writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "journal\t%s\n", r.Dir)
	if r.Changes == 0 {
		fmt.Fprintf(t, "changes\tnone (the next one is %d)\n", r.Newest+1)
	} else {
		fmt.Fprintf(t, "changes\t%d to %d (%d)\n", r.Oldest, r.Newest, r.Changes)
	}
	fmt.Fprintf(t, "retained\t%s\n", admin.FormatBytes(r.RetainedBytes))
	fmt.Fprintf(t, "on disk\t%s\n", admin.FormatBytes(r.DiskBytes))
	if r.Recovery != nil {
		fmt.Fprintf(t, "recovery\treplaced by a new journal, gaps not emitted yet: %s (kept in %s)\n", r.Recovery.Reason, r.Recovery.MovedTo)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, c := range r.Conditions {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s\n", c.Name, c.Reason)
	}
	fmt.Fprintf(t, "\nRESOURCE\tVERSION\tKNOWN\tBODIES\n")
	for _, s := range r.Resources {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, orDash(s.Version), countWithSize(s.Known, s.KnownBytes), countWithSize(s.Bodies, s.BodyBytes))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nSCOPE\tPOSITION\n")
	for _, resource := range r.Resources {
		for _, s := range resource.Scopes {
			fmt.Fprintf(t, "%s\t%s\n", s.Name, s.positionText())
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nSINK\tCURSOR\tBACKLOG\tDEAD LETTERS\n")
	for _, s := range r.Sinks {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.nameText(), optionalNumber(s.Cursor), optionalNumber(s.Backlog), countWithSize(s.DeadLetters, s.DeadBytes))
	}
	return t.Flush()
}

// positionText returns the position of a scope, or why it has none.
func (s *JournalScope) positionText() string {
	switch {
	case s.Position == "" && s.Lost != "":
		return "lost: " + s.Lost
	case s.Position == "" && s.Snapshot != "":
		return "first list in progress"
	}
	return orDash(s.Position)
}

func (s *JournalSink) nameText() string {
	text := s.Name
	if s.Configured != nil && !*s.Configured {
		text += " (not configured)"
	}
	if s.Removed != nil {
		text += fmt.Sprintf(" (removed %s: %d changes were not sent to it)", s.Removed.Format(time.RFC3339), s.Unsent)
	}
	return text
}

// countWithSize formats a number and the size of the counted things.
func countWithSize(n, bytes int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", n, admin.FormatBytes(bytes))
}

func optionalNumber(n *uint64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(*n, 10)
}
