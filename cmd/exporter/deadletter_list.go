package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/inspect"
)

func deadletterListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list --sink NAME (--config FILE | --dir DIR)",
		Short: "List the dead letters of a sink, oldest first, without bodies",
		Long: `List the dead letters of a sink of a stopped exporter, in order of offsets, without
the bodies of objects. The reason is the destination's own error text.

Nothing is changed. While an exporter runs on the journal this ends with exit code 3.`,
		Args: cobra.NoArgs,
	}
	place, sink := addJournalLocationFlags(cmd), sinkFlag(cmd)
	output := outputFlag(cmd, "form: text, or json for one object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON(*output)
		if err != nil {
			return err
		}
		dir, configured, err := place.resolveDirAndSinks()
		if err != nil {
			return err
		}
		return inspect.ListDeadLetters(dir, configured, *sink, asJSON, cmd.OutOrStdout())
	}
	return cmd
}
