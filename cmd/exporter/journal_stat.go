package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/journal"
)

func journalStatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stat (--config FILE | --dir DIR)",
		Short: "Print how much the journal holds, its scopes and how far each sink got",
		Long: `Print how much the journal of a stopped exporter holds, its scopes (a resource
with its selectors) and how far each sink got.

Nothing is changed: a read-only volume or a copy will do. While an exporter runs
on the journal this ends with exit code 3; its status page has the same numbers.

With --config every configured sink is listed, and one that is not configured any
more is marked. A sink's backlog counts the changes above its cursor; some of them
may be acknowledged already, in lanes that are ahead.`,
		Args: cobra.NoArgs,
	}
	place := journalPlaceFlags(cmd)
	output := cmd.Flags().StringP("output", "o", "text", "form: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(*output); err != nil {
			return err
		}
		dir, sinks, err := place.load()
		if err != nil {
			return err
		}
		return withJournal(dir, cmd.OutOrStdout(), func(j *journal.Offline, w io.Writer) error {
			s, err := j.Stat()
			if err != nil {
				return err
			}
			report := newJournalReport(dir, s, sinks)
			if *output == "json" {
				e := json.NewEncoder(w)
				e.SetIndent("", "  ")
				return e.Encode(report)
			}
			return report.write(w)
		})
	}
	return cmd
}

// journalReport is what stat prints; its JSON form is described in docs/operations.md.
type journalReport struct {
	Dir           string              `json:"dir"`
	Oldest        uint64              `json:"oldest"`
	Newest        uint64              `json:"newest"`
	Changes       uint64              `json:"changes"`
	RetainedBytes int64               `json:"retainedBytes"`
	DiskBytes     int64               `json:"diskBytes"`
	Recovery      *journaledRecovery  `json:"recovery,omitempty"`
	Resources     []journaledResource `json:"resources"`
	Sinks         []journaledSink     `json:"sinks"`
}

type journaledRecovery struct {
	Reason  string `json:"reason"`
	MovedTo string `json:"movedTo"`
}

type journaledResource struct {
	Name       string           `json:"name"`
	Version    string           `json:"version"`
	Kind       string           `json:"kind"`
	Known      int64            `json:"known"`
	KnownBytes int64            `json:"knownBytes"`
	Bodies     int64            `json:"bodies"`
	BodyBytes  int64            `json:"bodyBytes"`
	Scopes     []journaledScope `json:"scopes"`
}

type journaledScope struct {
	Name     string `json:"name"`
	Position string `json:"position"`
	Snapshot string `json:"snapshot"`
	Lost     string `json:"lost"`
}

type journaledSink struct {
	Name        string  `json:"name"`
	Configured  *bool   `json:"configured,omitempty"` // nil: no configuration was given
	Cursor      *uint64 `json:"cursor"`               // nil: it has none
	LanesAhead  int     `json:"lanesAhead"`
	Backlog     *uint64 `json:"backlog"` // nil: it has no cursor and nobody says that it will come
	DeadLetters int64   `json:"deadLetters"`
	DeadBytes   int64   `json:"deadBytes"`
}

// newJournalReport joins what is stored with the configured sinks; nil where there is no configuration.
func newJournalReport(dir string, s journal.OfflineStat, configured []string) *journalReport {
	r := &journalReport{
		Dir: dir, Oldest: s.Oldest, Newest: s.Newest, Changes: s.Changes(), RetainedBytes: s.RetainedBytes, DiskBytes: s.DiskBytes,
		Resources: []journaledResource{}, Sinks: []journaledSink{},
	}
	if s.Recovery != nil {
		r.Recovery = &journaledRecovery{Reason: s.Recovery.Reason, MovedTo: s.Recovery.MovedTo}
	}
	for _, stored := range s.Resources {
		r.Resources = append(r.Resources, newJournaledResource(stored))
	}
	stored := slices.Clone(s.Sinks)
	for _, name := range configured {
		if !slices.ContainsFunc(stored, func(k journal.OfflineSink) bool { return k.Name == name }) {
			stored = append(stored, journal.OfflineSink{Name: name, Backlog: s.Changes()})
		}
	}
	slices.SortFunc(stored, func(a, b journal.OfflineSink) int { return strings.Compare(a.Name, b.Name) })
	for _, k := range stored {
		r.Sinks = append(r.Sinks, newJournaledSink(k, configured))
	}
	return r
}

func newJournaledResource(r journal.ResourceStat) journaledResource {
	report := journaledResource{
		Name: r.Name, Version: r.Resource.Version, Kind: r.Resource.Kind, Known: r.Known, KnownBytes: r.KnownBytes,
		Bodies: r.Bodies, BodyBytes: r.BodyBytes, Scopes: []journaledScope{},
	}
	for _, s := range r.Scopes {
		report.Scopes = append(report.Scopes, journaledScope{Name: s.ID, Position: s.Position, Snapshot: s.Snapshot, Lost: s.Lost})
	}
	return report
}

func newJournaledSink(k journal.OfflineSink, configured []string) journaledSink {
	r := journaledSink{Name: k.Name, LanesAhead: len(k.Cursor.Lanes), DeadLetters: k.DeadLetters, DeadBytes: k.DeadBytes}
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
	return r
}

func (r *journalReport) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "journal\t%s\n", r.Dir)
	if r.Changes == 0 {
		fmt.Fprintf(t, "changes\tnone (the next one is %d)\n", r.Newest+1)
	} else {
		fmt.Fprintf(t, "changes\t%d to %d (%d)\n", r.Oldest, r.Newest, r.Changes)
	}
	fmt.Fprintf(t, "retained\t%s\n", humanBytes(r.RetainedBytes))
	fmt.Fprintf(t, "on disk\t%s\n", humanBytes(r.DiskBytes))
	if r.Recovery != nil {
		fmt.Fprintf(t, "recovery\tbegun anew, and the gaps are not announced yet: %s (kept in %s)\n", r.Recovery.Reason, r.Recovery.MovedTo)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nRESOURCE\tVERSION\tKNOWN\tBODIES\n")
	for _, s := range r.Resources {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, orDash(s.Version), countOf(s.Known, s.KnownBytes), countOf(s.Bodies, s.BodyBytes))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nSCOPE\tPOSITION\n")
	for _, resource := range r.Resources {
		for _, s := range resource.Scopes {
			fmt.Fprintf(t, "%s\t%s\n", s.Name, s.place())
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nSINK\tCURSOR\tBACKLOG\tDEAD LETTERS\n")
	for _, s := range r.Sinks {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.title(), number(s.Cursor), number(s.Backlog), s.dead())
	}
	return t.Flush()
}

// place is how far a scope has come.
func (s *journaledScope) place() string {
	switch {
	case s.Position == "" && s.Lost != "":
		return "lost: " + s.Lost
	case s.Position == "" && s.Snapshot != "":
		return "first list in progress"
	}
	return orDash(s.Position)
}

func (s *journaledSink) title() string {
	if s.Configured != nil && !*s.Configured {
		return s.Name + " (not configured)"
	}
	return s.Name
}

func (s *journaledSink) dead() string { return countOf(s.DeadLetters, s.DeadBytes) }

// countOf writes a number of things and what they take.
func countOf(n, bytes int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", n, humanBytes(bytes))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func number(n *uint64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(*n, 10)
}

// humanBytes writes a size with one decimal and the largest binary unit below it.
func humanBytes(n int64) string {
	size, unit := float64(n), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, larger
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", size, unit)
}
