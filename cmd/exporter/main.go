package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	_ "time/tzdata" // filters may name time zones, and an image has none

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/screen/terminal"
)

// version is set by the linker; without that it is what the go command wrote down.
var version = "dev"

func main() {
	if version == "dev" {
		version = versionFromBuildInfo(debug.ReadBuildInfo())
	}
	os.Exit(int(executeCommand(context.Background(), os.Args[1:], os.Stdout, os.Stderr)))
}

// executeCommand runs one command and returns its exit code. Everything cobra itself complains about is bad usage. What the
// command writes cannot steer a terminal.
func executeCommand(ctx context.Context, args []string, stdout, stderr io.Writer) exit.Code {
	out, errs := terminal.NewWriter(stdout), terminal.NewWriter(stderr)
	code := executeOn(ctx, args, out, errs)
	if err := errors.Join(out.Flush(), errs.Flush()); err != nil && code == exit.OK {
		return exit.Runtime
	}
	return code
}

func executeOn(ctx context.Context, args []string, stdout, stderr io.Writer) exit.Code {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var wrong *config.Error
	if errors.As(err, &wrong) { // one problem a line, each with its file: a prefix would only push them to the right
		fmt.Fprintln(stderr, wrong)
		return exit.Usage
	}
	code, given := exit.CodeOf(err)
	switch {
	case err == nil:
		return exit.OK
	case given && code != exit.Usage:
		fmt.Fprintf(stderr, "exporter: %v\n", err)
		return code
	}
	fmt.Fprintf(stderr, "exporter: %v\nTry '%s --help'.\n", err, cmd.CommandPath())
	return exit.Usage
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "exporter",
		Short:         "Ships every change of the Kubernetes resources you choose to Kafka, NATS, a webhook or a file",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr()) // a script that lost its command must not take the help for an answer
			return errors.Join(cmd.Help(), errors.New("a command is missing"))
		},
		Version: fmt.Sprintf("%s (%s, %s/%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH),
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(runCommand(), validateCommand(), versionCommand())
	root.AddCommand(tapCommand(), topCommand(), historyCommand())
	root.AddCommand(explainCommand(), rbacCommand(), auditPolicyCommand(), verifyCommand(), sqlCommand())
	root.AddCommand(journalCommand(), deadlettersCommand(), signalCommand(), stateCommand())
	return root
}

// groupCommand returns a command that does nothing itself: a word that is no command of it is named, with what may have been
// meant.
func groupCommand(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, SuggestionsMinimumDistance: 2}
	cmd.FParseErrWhitelist.UnknownFlags = true // they belong to the command that is not known
	cmd.AddCommand(commands...)
	cmd.RunE = func(*cobra.Command, []string) error {
		var names []string
		for _, c := range commands {
			names = append(names, c.Name())
		}
		last := len(names) - 1
		return fmt.Errorf("a subcommand is missing: %s or %s", strings.Join(names[:last], ", "), names[last])
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		meant := ""
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			meant = "; did you mean " + strings.Join(similar, " or ") + "?"
		}
		return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), meant)
	}
	return cmd
}

// configFlag adds --config to a command that reads the configuration.
func configFlag(cmd *cobra.Command) *string {
	path := cmd.Flags().StringP("config", "c", "", "configuration file (YAML)")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag is defined one line above
	}
	completeConfig(cmd)
	return path
}

func completeConfig(cmd *cobra.Command) {
	completeFlag(cmd, "config", cobra.FixedCompletions([]cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
}

func completeFlag(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // the caller has just defined the flag
	}
}

// choice is the value of a flag that takes one of some words. It implements [pflag.Value].
type choice struct {
	value   string
	allowed []string
}

// String implements [pflag.Value].
func (c *choice) String() string { return c.value }

// Type implements [pflag.Value].
func (*choice) Type() string { return "string" }

// Set implements [pflag.Value].
func (c *choice) Set(value string) error {
	if !slices.Contains(c.allowed, value) {
		return fmt.Errorf("expected one of %s", strings.Join(c.allowed, ", "))
	}
	c.value = value
	return nil
}

// choiceFlag adds a flag that takes one of some words; the first is the default.
func choiceFlag(cmd *cobra.Command, name, short, usage string, allowed ...string) *choice {
	c := &choice{allowed[0], allowed}
	cmd.Flags().VarP(c, name, short, usage)
	completeFlag(cmd, name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// outputFlag adds --output to a command that can write JSON, too.
func outputFlag(cmd *cobra.Command, usage string) *choice {
	return choiceFlag(cmd, "output", "o", usage, "text", "json")
}

func (c *choice) isJSON() bool { return c.value == "json" }

// printText prints what a command has made, unless that failed.
func printText(cmd *cobra.Command, text string, err error) error {
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), text)
	return err
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "exporter %s\n", cmd.Root().Version)
			return err
		},
	}
}

// versionFromBuildInfo is the version that the go command writes into what it builds: that of the module for "go install",
// one made of the commit for "go build" in a checkout.
func versionFromBuildInfo(info *debug.BuildInfo, ok bool) string {
	if !ok || info.Main.Version == "(devel)" { // -buildvcs=false, or a copy without its history
		return "dev"
	}
	return cmp.Or(info.Main.Version, "dev")
}
