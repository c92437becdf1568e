package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate --config FILE [--online] [-o json]",
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
	format := outputFlag(cmd, "text, or json with all problems, warnings and checks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var r validation
		err := r.check(cmd.Context(), *path, *online)
		write := r.writeText
		if format.isJSON() {
			write = r.writeJSON
		}
		return errors.Join(write(cmd.OutOrStdout(), cmd.ErrOrStderr()), err)
	}
	return cmd
}

// validation is what validate has found.
type validation struct {
	File     string            `json:"file"`
	Rules    int               `json:"rules"`
	Sinks    int               `json:"sinks"`
	Problems []config.Problem  `json:"problems"`
	Warnings []config.Problem  `json:"warnings"`
	Checks   inspect.Checklist `json:"checks,omitempty"` // with --online
}

// check fills in v. Its error ends the command.
func (v *validation) check(ctx context.Context, path string, online bool) error {
	v.File, v.Problems, v.Warnings = path, []config.Problem{}, []config.Problem{}
	cfg, err := config.Load(path)
	var wrong *config.Error
	if errors.As(err, &wrong) {
		v.Problems = wrong.Problems
	}
	if err != nil {
		return err
	}
	v.Rules, v.Sinks, v.Warnings = len(cfg.Resources), len(cfg.Sinks), append(v.Warnings, cfg.Warnings...)
	if !online {
		return nil
	}
	app.SilenceClientLogs()
	if v.Checks = inspect.CheckOnline(ctx, cfg, version); !v.Checks.OK() {
		return exit.With(exit.Environment, errors.New("the exporter could not work like this: see the lines with [-]"))
	}
	return nil
}

func (v *validation) writeJSON(out, _ io.Writer) error { return inspect.WriteJSON(out, v) }

// writeText writes what is not an error: main prints those.
func (v *validation) writeText(out, errs io.Writer) error {
	if len(v.Problems) > 0 {
		return nil
	}
	for _, w := range v.Warnings {
		fmt.Fprintf(errs, "warning: %s\n", w)
	}
	if _, err := fmt.Fprintf(out, "%s: ok (rules: %d, sinks: %d)\n", v.File, v.Rules, v.Sinks); err != nil {
		return err
	}
	return v.Checks.WriteText(out)
}
