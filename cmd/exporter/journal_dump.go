package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

func journalDumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump (--config FILE | --dir DIR)",
		Short: "Print the changes in the journal as JSON lines, with the bodies of the objects",
		Long: `Print the changes in the journal of a stopped exporter, one JSON object a line:

  {"offset":57,"change":{"id":"...","type":"updated",...}}

"change" is the native format, whatever format the sinks are configured for.

The bodies of objects are printed as they are stored. Secrets are redacted, as the
rules say; under "redact: none" they are plain, and so are passwords in ConfigMaps and
environment variables that no rule redacts: treat the output like the journal itself.

Nothing is changed: a read-only volume or a copy will do. While an exporter runs
on the journal this ends with exit code 3.`,
		Example: `  exporter journal dump --dir /var/lib/kubecdc --resource deployments.apps --limit 10
  exporter journal dump --config config.yaml --from 900 | jq -r '[.offset, .change.type, .change.name] | @tsv'`,
		Args: cobra.NoArgs,
	}
	place := journalPlaceFlags(cmd)
	d := &dump{}
	cmd.Flags().Uint64Var(&d.from, "from", 0, "first offset; 0: the oldest there is")
	cmd.Flags().Uint64Var(&d.to, "to", 0, "last offset; 0: the newest there is")
	cmd.Flags().Uint64Var(&d.limit, "limit", 0, "print at most so many changes; 0: all")
	cmd.Flags().StringSliceVar(&d.resources, "resource", nil, `only this resource, as kubectl writes it: "pods", "deployments.apps"; may be repeated`)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if d.to == 0 {
			d.to = math.MaxUint64
		}
		if d.from > d.to {
			return &usageError{fmt.Sprintf("--from %d is above --to %d", d.from, d.to)}
		}
		dir, _, err := place.load()
		if err != nil {
			return err
		}
		d.notes = cmd.ErrOrStderr()
		return withJournal(dir, cmd.OutOrStdout(), d.print)
	}
	return cmd
}

// dump is one dump of changes.
type dump struct {
	from, to, limit uint64
	resources       []string
	notes           io.Writer // what is said beside the changes
	printed         uint64
	line            []byte
}

// errEnough ends a dump at its limit.
var errEnough = errors.New("enough")

func (d *dump) print(j *journal.Offline, w io.Writer) error {
	oldest, newest := j.Oldest(), j.Newest()
	switch {
	case oldest > newest:
		fmt.Fprintf(d.notes, "exporter: the journal holds no changes\n")
	case d.from > newest || d.to < oldest || d.from > 0 && d.from < oldest:
		fmt.Fprintf(d.notes, "exporter: the journal holds the changes %d to %d only\n", oldest, newest)
	}
	err := j.Changes(d.from, d.to, func(r event.Record) error { return d.record(w, r) })
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (d *dump) record(w io.Writer, r event.Record) error {
	if len(d.resources) > 0 && !slices.Contains(d.resources, r.Change.Resource.String()) {
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
	if d.printed == d.limit {
		return errEnough
	}
	return nil
}
