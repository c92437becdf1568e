package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/inspect"
	"github.com/kubecdc/kubecdc/internal/signals"
)

func deadlettersCommand() *cobra.Command {
	return groupCommand("deadletters", "Look at, retry and discard what a sink gave up on, whether the exporter runs or not",
		`Look at, retry and discard what a sink gave up on. A dead letter is a change that the
destination has refused for ever. It is kept in the journal, and counts against
journal.maxBytes, until it is discarded.

A running exporter is asked at the socket in the directory of its journal; where none
answers, the journal itself is opened. Run it on the machine of the exporter, or in its
container, as the exporter's user. Where that is a standby it ends with exit code 3.`,
		deadlettersListCommand(), deadlettersShowCommand(),
		deadlettersTreatCommand(signals.RetryDeadLetters, "retry", "Deliver dead letters once more, unless a newer change of the object followed",
			`Deliver dead letters of a sink once more: those at the offsets named, or all of them.
They get a place behind everything that waits for the sink, and are dead letters no
more; what is rejected again becomes a dead letter again. A stopped exporter delivers
them when it is started, and needs --config.

Only the last dead letter of an object is sent. If a newer change of the object has
followed, it stays: an older change must not follow a newer one. Changes with a body
that could not be redacted and control records stay too. The answer says how many.
Discard those.

With a replicated state and a stopped exporter another one may have taken over: then
they are dead letters again once this one does.`),
		deadlettersTreatCommand(signals.DiscardDeadLetters, "discard", "Drop dead letters for good",
			`Drop dead letters of a sink for good: those at the offsets named, or all of them. Where
one of the offsets has no dead letter, none is dropped. The sink need not be configured
any more. Look first (list, show): what is dropped is nowhere else.`),
	)
}

func deadlettersListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list --sink NAME (--config FILE | --dir DIR)",
		Short: "List the dead letters of a sink, oldest first, without bodies",
		Long: `List the dead letters of a sink in order of offsets, without the bodies of objects. The
reason is the destination's own error text. Nothing is changed.`,
		Args: cobra.NoArgs,
	}
	place, sink := addJournalLocationFlags(cmd), sinkFlag(cmd)
	output := outputFlag(cmd, "form: text, or json for one object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		letters, err := (&signalTarget{config: place.config, dir: place.dir}).deadLetters(*sink)
		if err != nil {
			return err
		}
		return letters.List(cmd.Context(), output.isJSON(), cmd.OutOrStdout())
	}
	return cmd
}

func deadlettersShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show OFFSET --sink NAME (--config FILE | --dir DIR)",
		Short: "Print one dead letter as JSON, with the body of the object",
		Long: `Print one dead letter as one line of JSON:

  {"offset":57,"time":"...","reason":"...","change":{"id":"...",...}}

"change" is the native format, whatever format the sink is configured for.

The body of the object is printed as it is stored. Secrets in it are redacted by
the rule that selected it; under "redact: none" they are plain. Nothing is changed.`,
		Args: cobra.ExactArgs(1),
	}
	place, sink := addJournalLocationFlags(cmd), sinkFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offset, err := parseOffset(args[0])
		if err != nil {
			return err
		}
		letters, err := (&signalTarget{config: place.config, dir: place.dir}).deadLetters(*sink)
		if err != nil {
			return err
		}
		return letters.Show(cmd.Context(), offset, cmd.OutOrStdout())
	}
	return cmd
}

// deadlettersTreatCommand is a command that retries or discards dead letters.
func deadlettersTreatCommand(kind signals.Kind, name, short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " (OFFSET... | --all) --sink NAME (--config FILE | --dir DIR | --server URL)", Short: short, Long: long, Args: cobra.ArbitraryArgs,
	}
	target, sink, output := addSignalTargetFlags(cmd), sinkFlag(cmd), outputFlag(cmd, "form: text or json")
	all := cmd.Flags().Bool("all", false, "all dead letters of the sink")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offsets, err := parseOffsets(args, *all)
		if err != nil {
			return err
		}
		letters, err := target.deadLetters(*sink)
		if err != nil {
			return err
		}
		return letters.Treat(cmd.Context(), signals.Request{Kind: kind, All: *all, Offsets: offsets}, output.isJSON(), cmd.OutOrStdout())
	}
	return cmd
}

func (t *signalTarget) deadLetters(sink string) (l inspect.DeadLetters, err error) {
	l.Sink = sink
	if t.server == "" {
		if l.Dir, l.Configured, err = (&journalLocation{t.config, t.dir}).resolveDirAndSinks(); err != nil {
			return l, err
		}
	}
	l.Client, err = t.newClient()
	return l, err
}

func sinkFlag(cmd *cobra.Command) *string {
	name := cmd.Flags().String("sink", "", "name of the sink")
	if err := cmd.MarkFlagRequired("sink"); err != nil {
		panic(err) // the flag is defined one line above
	}
	return name
}

// parseOffsets reads which dead letters are meant; nil with all.
func parseOffsets(args []string, all bool) ([]uint64, error) {
	if all == (len(args) > 0) {
		return nil, errors.New("no dead letters given: expected their offsets, or --all")
	}
	var offsets []uint64
	for _, arg := range args {
		offset, err := parseOffset(arg)
		if err != nil {
			return nil, err
		}
		offsets = append(offsets, offset)
	}
	return offsets, nil
}

func parseOffset(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not an offset: a whole number from 1 on, as list prints it", s)
	}
	return n, nil
}
