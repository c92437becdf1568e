package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run (--config FILE | --history DIR)",
		Short: "Watch and deliver until stopped",
		Long: `Watch and deliver until stopped.

SIGTERM or SIGINT stops watching, delivers what the journal holds for at most
delivery.drainTimeout, and exits 0. A second signal, at least a second after the
first, exits at once. Either way
nothing is lost: what was not delivered is in the journal.

A changed configuration file is taken up while it runs: what an edit does not concern
goes on untouched. A bad file is refused, and the one before goes on. SIGHUP reads the
file again.

--history needs no configuration file: all resources but Events and Leases, with masked
Secrets, are watched, and their history is written to a folder, for 'exporter history'.
The journal is beside it, in DIR.journal; that of a bucket in ./history.journal.`,
		Args: cobra.NoArgs,
	}
	path := cmd.Flags().StringP("config", "c", "", "configuration file (YAML)")
	dir := cmd.Flags().String("history", "", "folder or bucket (s3://…) of a history to write, without a configuration file")
	cmd.MarkFlagsMutuallyExclusive("config", "history")
	completeConfig(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var cfg *config.Config
		var err error
		switch {
		case *path != "":
			cfg, err = config.Load(*path)
		case *dir != "":
			cfg, err = config.ForHistory(*dir)
		default:
			return errors.New("--config FILE is missing; 'exporter run --history ./history' needs none")
		}
		if err != nil {
			return err
		}
		return app.Run(cmd.Context(), cfg, version, cmd.ErrOrStderr())
	}
	return cmd
}
