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
		Args:  cobra.NoArgs,
	}
	path := configFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok (%d rules, %d sinks)\n", *path, len(cfg.Resources), len(cfg.Sinks))
		return err
	}
	return cmd
}
