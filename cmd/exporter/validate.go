package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate --config FILE [--online]",
		Short: "Check a configuration without starting anything",
		Long: `Check a configuration without starting anything.

Everything that run would refuse is printed, with file, line, path and remedy, and the
exit code is 2: the files that hold credentials have to be there. Suspicious settings
are printed as warnings.

Nothing is contacted, unless --online is given: then the API server is asked what is
served and what may be read, and every sink for its destination: whether it answers, lets
the account in and has the topics or the stream. Nothing is written or created there. The
answer is a checklist: [+] ok, [!] warning, [-] failed, with the remedy. With a [-] the
exit code is 3.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	online := cmd.Flags().Bool("online", false, "ask the API server and the sinks, too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		for _, w := range cfg.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok (rules: %d, sinks: %d)\n", *path, len(cfg.Resources), len(cfg.Sinks))
		if err != nil || !*online {
			return err
		}
		app.SilenceClientLogs()
		found := inspect.CheckOnline(cmd.Context(), cfg, version)
		if err := found.WriteText(cmd.OutOrStdout()); err != nil {
			return err
		}
		if !found.OK() {
			return exit.With(exit.Environment, errors.New("the exporter could not work like this: see the lines with [-]"))
		}
		return nil
	}
	return cmd
}
