package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/format"
)

func deadletterShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show OFFSET --sink NAME (--config FILE | --dir DIR)",
		Short: "Print one dead letter as JSON, with the body of the object",
		Long: `Print one dead letter of a stopped exporter as one line of JSON:

  {"offset":57,"time":"...","reason":"...","change":{"id":"...",...}}

"change" is the native format, whatever format the sink is configured for.

The body of the object is printed as it is stored. Secrets in it are redacted, as the
rule says that selected it; under "redact: none" they are plain.

Nothing is changed. While an exporter runs on the journal this ends with exit code 3.`,
		Args: cobra.ExactArgs(1),
	}
	place, sink := journalPlaceFlags(cmd), sinkFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offset, err := parseOffset(args[0])
		if err != nil {
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
			d, ok, err := j.DeadLetter(*sink, offset)
			if err != nil {
				return err
			}
			if !ok {
				return &usageError{fmt.Sprintf("sink %q has no dead letter at offset %d", *sink, offset)}
			}
			return writeDeadLetter(w, d)
		})
	}
	return cmd
}

// writeDeadLetter writes a dead letter with its whole change. The change is copied as it is: encoding/json would rewrite it.
func writeDeadLetter(w io.Writer, d journal.DeadLetter) error {
	reason, err := json.Marshal(d.Reason)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "{\"offset\":%d,\"time\":%q,\"reason\":%s,\"change\":%s}\n",
		d.Offset, d.Time.UTC().Format(time.RFC3339Nano), reason, format.AppendJSON(nil, d.Change))
	return err
}
