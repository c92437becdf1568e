package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
)

func validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate --config FILE",
		Short: "Check a configuration without starting or contacting anything",
		Long: `Check a configuration without starting or contacting anything.

Everything that run would refuse is printed, with file, line, path and remedy, and the
exit code is 2: the files that hold credentials have to be there. What is only suspicious
is printed as a warning.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		for _, w := range cfg.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok (%d rules, %d sinks)\n", *path, len(cfg.Resources), len(cfg.Sinks))
		return err
	}
	return cmd
}
