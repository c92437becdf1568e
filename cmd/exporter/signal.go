package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/inspect"
	"github.com/kubecdc/kubecdc/internal/signals"
)

func signalCommand() *cobra.Command {
	return groupCommand("signal", "Ask something of a running exporter: pause and resume a sink or a rule, a snapshot, a replay",
		`Ask something of a running exporter, at the socket in the directory of its journal or,
with --server and --token-file, at its admin server.

A signal is stored before it is answered, and survives a crash, a changed
configuration and, with a replicated state, a failover. list shows each with its end.

Without --server, run it on the machine of the exporter, or in its container, as the
exporter's user. Where no exporter answers, or only a standby, it ends with exit code 3.`,
		signalPauseCommand(), signalResumeCommand(), signalSnapshotCommand(), signalReplayCommand(), signalCancelCommand(),
		signalListCommand(),
	)
}

func signalPauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause (--sink NAME | --rule NAME) [--for DURATION] (--config FILE | --dir DIR | --server URL)",
		Short: "Deliver nothing to a sink, or read nothing of a rule, until it is resumed",
		Long: `Deliver nothing to a sink until it is resumed, or for a time. Its changes wait in the
journal, and other sinks continue. Once the journal reaches journal.maxBytes nothing is
read from the API server.

Or read nothing of the resources of a rule (resources[].name). Nothing waits anywhere:
once the API server no longer has the history, after a few minutes, the rule goes on with
a gap, and changes in between are lost. Other rules continue.

It ends when what was sent before is acknowledged, or what was read before is stored.
What is paused already stays paused; the new signal decides until when.`,
		Args: cobra.NoArgs,
	}
	target, of, output := addSignalTargetFlags(cmd), addSubjectFlags(cmd), outputFlag(cmd, "form: text or json")
	duration := cmd.Flags().Duration("for", 0, "resume by itself after this time, such as 30m; without: until resumed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("for") && *duration <= 0 {
			return errors.New("--for must be above 0; without it the pause lasts until it is resumed")
		}
		return sendSignal(cmd, target, signals.Request{Kind: signals.Pause, Sink: of.Sink, Rule: of.Rule, For: *duration}, output)
	}
	return cmd
}

func signalResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume (--sink NAME | --rule NAME) (--config FILE | --dir DIR | --server URL)",
		Short: "End the pause of a sink or of a rule",
		Long: `End the pause of a sink: everything that has waited for it is delivered, in order and
once. Or of a rule: it goes on where it was paused, or with a gap where the API server no
longer has the history.`,
		Args: cobra.NoArgs,
	}
	target, of, output := addSignalTargetFlags(cmd), addSubjectFlags(cmd), outputFlag(cmd, "form: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return sendSignal(cmd, target, signals.Request{Kind: signals.Resume, Sink: of.Sink, Rule: of.Rule}, output)
	}
	return cmd
}

// addSubjectFlags adds --sink and --rule, of which one is required.
func addSubjectFlags(cmd *cobra.Command) *signals.Subject {
	of := &signals.Subject{}
	cmd.Flags().StringVar(&of.Sink, "sink", "", "name of the sink")
	cmd.Flags().StringVar(&of.Rule, "rule", "", "name of the rule")
	cmd.MarkFlagsOneRequired("sink", "rule")
	cmd.MarkFlagsMutuallyExclusive("sink", "rule")
	return of
}

func signalSnapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot --sink NAME (--select RESOURCE... | --all) [-n NAMESPACE | --object NAMESPACE/NAME...] (--config FILE | --dir DIR | --server URL)",
		Short: "Emit the existing objects again for a sink, between live changes",
		Long: `Emit the existing objects again for a sink, between live changes: of the resources
selected, as rules name them, or with --all of all that are watched. Other sinks get
nothing of it.

--object names single objects of one resource: those that exist are emitted again, and
of the others a delete is.

It returns when the signal is stored. list shows when the sink has everything, and how
much that was. It goes on after a crash, with a changed configuration and, with a
replicated state, after a failover.`,
		Args: cobra.NoArgs,
	}
	target, sink, output := addSignalTargetFlags(cmd), sinkFlag(cmd), outputFlag(cmd, "form: text or json")
	names := cmd.Flags().StringSlice("select", nil, "these resources, such as deployments.apps")
	all := cmd.Flags().Bool("all", false, "all resources that are watched")
	namespace := cmd.Flags().StringP("namespace", "n", "", "only objects of this namespace; all without")
	objects := cmd.Flags().StringArray("object", nil, "only this object of the selected resource: NAMESPACE/NAME, or NAME without namespaces")
	cmd.MarkFlagsOneRequired("select", "all")
	cmd.MarkFlagsMutuallyExclusive("select", "all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return sendSignal(cmd, target, signals.Request{
			Kind: signals.Snapshot, Sink: *sink, All: *all, Select: *names, Namespace: *namespace, Objects: *objects,
		}, output)
	}
	return cmd
}

func signalReplayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay --sink NAME --since (TIME | DURATION | OFFSET) (--config FILE | --dir DIR | --server URL)",
		Short: "Emit again for a sink what the journal keeps, between live changes",
		Long: `Emit again for a sink what the journal keeps, between live changes: every record of an
object since a time (2026-11-26T15:04:05Z), since a while ago (10m), or from an offset of
the journal on. The records have the type replayed, which tables of objects ignore: they
are the past. Other sinks get nothing of it.

The journal keeps what some sink still needs, and journal.keep longer. If it does not
reach back that far, the answer says from where it does. For a sink that keeps rows, or
to bring a table up to date, there is exporter signal snapshot.

It returns when the signal is stored. list shows when the sink has everything, and how
much that was.`,
		Args: cobra.NoArgs,
	}
	target, sink, output := addSignalTargetFlags(cmd), sinkFlag(cmd), outputFlag(cmd, "form: text or json")
	since := cmd.Flags().String("since", "", "the first record: a time in RFC 3339, how long ago such as 10m, or an offset")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		offset, from, err := parseSince(*since, time.Now())
		if err != nil {
			return err
		}
		return sendSignal(cmd, target, signals.Request{Kind: signals.Replay, Sink: *sink, Offset: offset, From: from}, output)
	}
	return cmd
}

// parseSince parses where a replay begins: at an offset, or else at a time.
func parseSince(text string, now time.Time) (offset uint64, from time.Time, err error) {
	if offset, err := strconv.ParseUint(text, 10, 64); err == nil && offset > 0 {
		return offset, from, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return 0, now.Add(-ago).UTC(), nil
	}
	if from, err = time.Parse(time.RFC3339, text); err == nil && !from.After(now) {
		return 0, from.UTC(), nil
	}
	return 0, from, fmt.Errorf("--since is %q and must be a past time such as 2026-11-26T15:04:05Z, how long ago such as 10m, or an offset", text)
}

func signalCancelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel ID (--config FILE | --dir DIR | --server URL)",
		Short: "End a snapshot or a replay that is active",
		Long: `End a snapshot or a replay that is active, for example because it waits for a resource
that may not be read. What the sink has got of it stays valid, and others can follow.

A pause is ended by resume.`,
		Args: cobra.ExactArgs(1),
	}
	target, output := addSignalTargetFlags(cmd), outputFlag(cmd, "form: text or json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return sendSignal(cmd, target, signals.Request{Kind: signals.Cancel, Target: args[0]}, output)
	}
	return cmd
}

func sendSignal(cmd *cobra.Command, target *signalTarget, r signals.Request, output *choice) error {
	client, err := target.newClient()
	if err != nil {
		return err
	}
	return inspect.SendSignal(cmd.Context(), client, r, output.isJSON(), cmd.OutOrStdout())
}

// signalTarget is the exporter that a signal is for: by its journal, or by its admin server.
type signalTarget struct {
	config, dir       string
	server, tokenFile string
	cleartext         bool
}

// addSignalTargetFlags adds the flags that name an exporter to a command that asks it for something.
func addSignalTargetFlags(cmd *cobra.Command) *signalTarget {
	t, flags := &signalTarget{}, cmd.Flags()
	flags.StringVarP(&t.config, "config", "c", "", "configuration file (YAML) that names the journal")
	flags.StringVar(&t.dir, "dir", "", "directory of the journal")
	flags.StringVar(&t.server, "server", "", "URL of the exporter's admin server, such as http://localhost:8080; it has admin.signals.token")
	flags.StringVar(&t.tokenFile, "token-file", "", "file with the token for --server")
	flags.BoolVar(&t.cleartext, "allow-cleartext-credentials", false, "send the token to --server over http:// through a trusted network")
	cmd.MarkFlagsOneRequired("config", "dir", "server")
	cmd.MarkFlagsMutuallyExclusive("config", "dir", "server")
	cmd.MarkFlagsRequiredTogether("server", "token-file")
	return t
}

func (t *signalTarget) newClient() (*signals.Client, error) {
	if t.server != "" {
		return signals.NewServerClient(t.server, t.tokenFile, t.cleartext)
	}
	dir, _, err := (&journalLocation{t.config, t.dir}).resolveDirAndSinks()
	if err != nil {
		return nil, err
	}
	client, err := signals.NewClient(dir)
	if err != nil {
		err = exit.With(exit.Environment, err)
	}
	return client, err
}

func signalListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list (--config FILE | --dir DIR | --server URL)",
		Short: "List signals with what became of them, the oldest first",
		Long: `List the signals of a running exporter with what became of them, the oldest first. The
last 100 ended ones are kept, and the last 20 that were refused.`,
		Args: cobra.NoArgs,
	}
	target := addSignalTargetFlags(cmd)
	output := outputFlag(cmd, "form: text, or json for one object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := target.newClient()
		if err != nil {
			return err
		}
		return inspect.ListSignals(cmd.Context(), client, output.isJSON(), cmd.OutOrStdout())
	}
	return cmd
}
