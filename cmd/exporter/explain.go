package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain --config FILE [-o json]",
		Short: "Show what the rules select on this cluster, where it goes and what is forbidden",
		Long: `Show what the rules select on this cluster, where it goes and what is forbidden.

The API server is asked what it serves and what the current credentials may read;
no sink is contacted, nothing is stored and nothing is written anywhere.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	output := outputFlag(cmd, "form of the answer: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.LoadWithoutSinkFiles(*path)
		if err != nil {
			return err
		}
		r, err := inspect.Explain(cmd.Context(), cfg, version)
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
