package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/inspect"
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
	place := addJournalLocationFlags(cmd)
	output := outputFlag(cmd, "form: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON(*output)
		if err != nil {
			return err
		}
		dir, bounds, err := place.resolveBounds()
		if err != nil {
			return err
		}
		return inspect.WriteJournalStat(dir, bounds, asJSON, cmd.OutOrStdout())
	}
	return cmd
}
