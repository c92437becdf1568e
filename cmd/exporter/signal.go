package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/inspect"
	"github.com/kubecdc/kubecdc/internal/signals"
)

func signalCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "signal",
		Short: "Ask something of a running exporter: pause and resume a sink",
		Long: `Ask something of a running exporter, at the socket in the directory of its journal.

A signal is stored before it is answered, and survives a crash, a changed
configuration and, with a replicated state, a failover. list shows each with its end.

Run it on the machine of the exporter, or in its container, as the exporter's user.
Where no exporter answers, or only a standby, it ends with exit code 3.`,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a subcommand is missing: pause, resume or list")
		},
	}
	onlyCommands(cmd)
	cmd.AddCommand(signalPauseCommand(), signalResumeCommand(), signalListCommand())
	return cmd
}

func signalPauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause --sink NAME [--for DURATION] (--config FILE | --dir DIR)",
		Short: "Deliver nothing to a sink until it is resumed",
		Long: `Deliver nothing to a sink until it is resumed, or for a time. Its changes wait in the
journal, and other sinks continue. Once the journal reaches journal.maxBytes nothing is
read from the API server.

It ends when what was sent before is acknowledged. A sink that is paused already stays
paused; the new signal decides until when.`,
		Args: cobra.NoArgs,
	}
	place, sink, output := addJournalLocationFlags(cmd), sinkFlag(cmd), outputFlag(cmd, "form: text or json")
	duration := cmd.Flags().Duration("for", 0, "resume by itself after this time, such as 30m; 0: until resumed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *duration < 0 {
			return errors.New("--for is negative")
		}
		return sendSignal(cmd, place, signals.Request{Kind: signals.Pause, Sink: *sink, For: *duration}, *output)
	}
	return cmd
}

func signalResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume --sink NAME (--config FILE | --dir DIR)",
		Short: "End the pause of a sink",
		Long: `End the pause of a sink: everything that has waited for it is delivered, in order and
once.`,
		Args: cobra.NoArgs,
	}
	place, sink, output := addJournalLocationFlags(cmd), sinkFlag(cmd), outputFlag(cmd, "form: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return sendSignal(cmd, place, signals.Request{Kind: signals.Resume, Sink: *sink}, *output)
	}
	return cmd
}

func sendSignal(cmd *cobra.Command, place *journalLocation, r signals.Request, output string) error {
	asJSON, err := isJSON(output)
	if err != nil {
		return err
	}
	dir, _, err := place.resolveDirAndSinks()
	if err != nil {
		return err
	}
	return inspect.SendSignal(cmd.Context(), dir, r, asJSON, cmd.OutOrStdout())
}

func signalListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list (--config FILE | --dir DIR)",
		Short: "List signals with what became of them, the oldest first",
		Long: `List the signals of a running exporter with what became of them, the oldest first. The
last 100 ended ones are kept.`,
		Args: cobra.NoArgs,
	}
	place := addJournalLocationFlags(cmd)
	output := outputFlag(cmd, "form: text, or json for one object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := isJSON(*output)
		if err != nil {
			return err
		}
		dir, _, err := place.resolveDirAndSinks()
		if err != nil {
			return err
		}
		return inspect.ListSignals(cmd.Context(), dir, asJSON, cmd.OutOrStdout())
	}
	return cmd
}
