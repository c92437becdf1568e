package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
)

// version is set by the linker.
var version = "dev"

// The exit codes, a contract with scripts and supervisors.
const (
	exitOK          = 0
	exitRuntime     = 1
	exitUsage       = 2
	exitEnvironment = 3
)

// environmentError says that the process could not start because of what it found around it, not because of its
// configuration.
type environmentError struct{ err error }

func (e *environmentError) Error() string { return e.err.Error() }
func (e *environmentError) Unwrap() error { return e.err }

// runtimeError says that the process had started and then failed.
type runtimeError struct{ err error }

func (e *runtimeError) Error() string { return e.err.Error() }
func (e *runtimeError) Unwrap() error { return e.err }

func main() {
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command and returns its exit code. Everything cobra itself complains about is bad usage.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var wrong *config.Error
	var environment *environmentError
	var failed *runtimeError
	switch {
	case errors.As(err, &wrong): // one problem a line, each with its file: a prefix would only push them to the right
		fmt.Fprintln(stderr, wrong)
		return exitUsage
	case errors.As(err, &environment):
		fmt.Fprintf(stderr, "exporter: %v\n", err)
		return exitEnvironment
	case errors.As(err, &failed):
		fmt.Fprintf(stderr, "exporter: %v\n", err)
		return exitRuntime
	}
	fmt.Fprintf(stderr, "exporter: %v\nTry 'exporter --help'.\n", err)
	return exitUsage
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "exporter",
		Short:         "Ships every change of the Kubernetes resources you choose to Kafka, NATS or a file",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(*cobra.Command, []string) error { return errors.New("say which command to run") },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), validateCommand(), versionCommand())
	root.AddCommand(explainCommand(), rbacCommand())
	root.AddCommand(journalCommand(), deadletterCommand())
	return root
}

// configFlag adds --config to a command that reads the configuration.
func configFlag(cmd *cobra.Command) *string {
	path := cmd.Flags().StringP("config", "c", "", "configuration file (YAML)")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag is defined one line above
	}
	return path
}
