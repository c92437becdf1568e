package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Watch and deliver until stopped",
		Long: `Watch and deliver until stopped.

SIGTERM or SIGINT stops watching, delivers what the journal holds for at most
delivery.drainTimeout, and exits 0. A second signal, at least a second after the
first, exits at once. Either way
nothing is lost: what was not delivered is in the journal.

A changed configuration file is taken up while it runs: what an edit does not concern
goes on untouched. A bad file is refused, and the one before goes on. SIGHUP reads the
file again.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		return app.Run(cmd.Context(), cfg, version, cmd.ErrOrStderr())
	}
	return cmd
}
