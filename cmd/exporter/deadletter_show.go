package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/inspect"
)

func deadletterShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show OFFSET --sink NAME (--config FILE | --dir DIR)",
		Short: "Print one dead letter as JSON, with the body of the object",
		Long: `Print one dead letter of a stopped exporter as one line of JSON:

  {"offset":57,"time":"...","reason":"...","change":{"id":"...",...}}

"change" is the native format, whatever format the sink is configured for.

The body of the object is printed as it is stored. Secrets in it are redacted by
the rule that selected it; under "redact: none" they are plain.

Nothing is changed. While an exporter runs on the journal this ends with exit code 3.`,
		Args: cobra.ExactArgs(1),
	}
	place, sink := addJournalLocationFlags(cmd), sinkFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offset, err := parseOffset(args[0])
		if err != nil {
			return err
		}
		dir, configured, err := place.resolveDirAndSinks()
		if err != nil {
			return err
		}
		return inspect.ShowDeadLetter(dir, configured, *sink, offset, cmd.OutOrStdout())
	}
	return cmd
}
