package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/journal"
)

// listPage is how many lines are aligned with each other, and so held in memory.
const listPage = 500

func deadletterListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list --sink NAME (--config FILE | --dir DIR)",
		Short: "List the dead letters of a sink, oldest first, without bodies",
		Long: `List the dead letters of a sink of a stopped exporter, in order of offsets, without
the bodies of objects. The reason is what the destination said, in its words.

Nothing is changed. While an exporter runs on the journal this ends with exit code 3.`,
		Args: cobra.NoArgs,
	}
	place, sink := journalPlaceFlags(cmd), sinkFlag(cmd)
	output := cmd.Flags().StringP("output", "o", "text", "form: text, or json for one object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(*output); err != nil {
			return err
		}
		dir, configured, err := place.load()
		if err != nil {
			return err
		}
		return withJournal(dir, cmd.OutOrStdout(), func(j *journal.Offline, w io.Writer) error {
			if err := knowSink(j, configured, *sink); err != nil {
				return err
			}
			if *output == "json" {
				return listJSON(j, *sink, w)
			}
			return listText(j, *sink, w)
		})
	}
	return cmd
}

// deadLine is one dead letter without its body.
type deadLine struct {
	Offset    uint64    `json:"offset"`
	Time      time.Time `json:"time"`
	Reason    string    `json:"reason"`
	ID        string    `json:"id"`
	Type      string    `json:"type"`
	Resource  string    `json:"resource"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
}

func newDeadLine(d journal.DeadLetter) deadLine {
	c := d.Change
	return deadLine{
		Offset: d.Offset, Time: d.Time.UTC(), Reason: d.Reason, ID: c.ID(), Type: string(c.Type),
		Resource: c.Resource.String(), Namespace: c.Namespace, Name: c.Name,
	}
}

func listJSON(j *journal.Offline, sink string, w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return j.DeadLetters(sink, func(d journal.DeadLetter) error { return e.Encode(newDeadLine(d)) })
}

func listText(j *journal.Offline, sink string, w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "OFFSET\tTIME\tTYPE\tRESOURCE\tOBJECT\tREASON")
	n := 0
	err := j.DeadLetters(sink, func(d journal.DeadLetter) error {
		l := newDeadLine(d)
		object := strings.TrimPrefix(l.Namespace+"/"+l.Name, "/")
		_, err := fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n",
			l.Offset, l.Time.Format(time.RFC3339), l.Type, l.Resource, orDash(object), strings.Map(printable, l.Reason))
		if n++; err == nil && n%listPage == 0 {
			err = t.Flush()
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.Flush()
}

// printable keeps what a destination wrote on its line and in its column, and away from the terminal's control.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}
