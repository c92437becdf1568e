package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain --config FILE [--for DURATION] [-o json]",
		Short: "Show what the rules select on this cluster, where it goes and what is forbidden",
		Long: `Show what the rules select on this cluster, where it goes and what is forbidden.

The API server is asked what it serves and what the current credentials may read;
no sink is contacted, nothing is stored and nothing is written anywhere. With --for
the selected resources are watched for that long and their rates are measured.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	window := cmd.Flags().Duration("for", 0, "watch this long and measure the rate of changes and bytes of each resource")
	output := outputFlag(cmd, "form of the answer: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *window < 0 {
			return fmt.Errorf("--for %v: expected a time above 0, for example 10s", *window)
		}
		cfg, err := config.LoadWithoutSinkFiles(*path)
		if err != nil {
			return err
		}
		r, err := inspect.Explain(cmd.Context(), cfg, version, *window)
		if err != nil {
			return err
		}
		if output.isJSON() {
			return inspect.WriteJSON(cmd.OutOrStdout(), r)
		}
		return r.WriteText(cmd.OutOrStdout())
	}
	return cmd
}
