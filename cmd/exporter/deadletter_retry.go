package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
	"github.com/kubecdc/kubecdc/internal/signals"
)

func deadletterRetryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry (OFFSET... | --all) --sink NAME --config FILE",
		Short: "Deliver dead letters of a sink once more, unless a newer change of the object followed",
		Long: `Deliver dead letters of a sink of a stopped exporter once more, when it is started
again: those at the offsets named, or all of them. They get a place behind everything
that waits for the sink, and are dead letters no more; what is rejected again becomes a
dead letter again.

Only the last dead letter of an object is sent. If a newer change of the object has
followed, it stays: an older change must not follow a newer one. Changes with a body
that could not be redacted and control records stay too. The answer says how many.
Discard those.

The journal must be writable. While an exporter runs on it, this ends with exit code 3;
exporter signal deadletters does the same there. With a replicated state another
exporter may have taken over: then they are dead letters again once this one does.`,
		Args: cobra.ArbitraryArgs,
	}
	path, sink := configFlag(cmd), sinkFlag(cmd)
	all := cmd.Flags().Bool("all", false, "retry all dead letters of the sink")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offsets, err := parseOffsets(args, *all)
		if err != nil {
			return err
		}
		cfg, err := config.LoadWithoutSinkFiles(*path)
		if err != nil {
			return err
		}
		var configured []string
		for _, s := range cfg.Sinks {
			configured = append(configured, s.Name)
		}
		r := signals.Request{Kind: signals.RetryDeadLetters, Sink: *sink, All: *all, Offsets: offsets}
		return inspect.TreatDeadLetters(cmd.Context(), cfg.Journal.Dir, configured, r, cmd.OutOrStdout())
	}
	return cmd
}
