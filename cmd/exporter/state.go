package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func stateCommand() *cobra.Command {
	return groupCommand("state", "Look at the replicated state, or remove it", "",
		stateShowCommand(), stateResetCommand())
}

// stateConfig adds --config, which names the state.
func stateConfig(cmd *cobra.Command) func() (*config.Config, error) {
	path := cmd.Flags().StringP("config", "c", "", "configuration file (YAML) that names the state")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag is there
	}
	return func() (*config.Config, error) { return config.LoadWithoutSinkFiles(*path) }
}

func stateShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show --config FILE [--output text|json]",
		Short: "Show the owner and the content of the replicated state",
		Long: `Show the owner, the progress and the content of the replicated state: objects and
positions of each resource, and how far each lane is covered. It may run beside
exporters and does not disturb them. The exit code is 1 if an exporter with this
configuration cannot use the state, and 3 if the bus cannot be reached.`,
		Args: cobra.NoArgs,
	}
	load := stateConfig(cmd)
	output := outputFlag(cmd, "form: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load()
		if err != nil {
			return err
		}
		return inspect.ShowState(cmd.Context(), cfg, output.isJSON(), cmd.OutOrStdout())
	}
	return cmd
}

func stateResetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset --config FILE --yes",
		Short: "Remove the replicated state",
		Long: `Remove the replicated state, except the lanes that have to be fenced. The active
exporter is deposed and becomes a standby.

Afterwards an exporter with a journal continues from it and writes a new state. One
without a journal starts with a snapshot of everything; deletes that happened
meanwhile are not emitted one by one. Stop all exporters first.`,
		Args: cobra.NoArgs,
	}
	load := stateConfig(cmd)
	yes := cmd.Flags().Bool("yes", false, "do it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*yes {
			return exit.With(exit.Usage, errors.New("nothing was removed: --yes removes the state for good"))
		}
		cfg, err := load()
		if err != nil {
			return err
		}
		return inspect.ResetState(cmd.Context(), cfg, cmd.OutOrStdout())
	}
	return cmd
}
