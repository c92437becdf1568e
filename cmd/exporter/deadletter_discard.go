package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/inspect"
	"github.com/kubecdc/kubecdc/internal/signals"
)

func deadletterDiscardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "discard (OFFSET... | --all) --sink NAME (--config FILE | --dir DIR)",
		Short: "Drop dead letters of a sink for good",
		Long: `Drop dead letters of a sink of a stopped exporter for good: those at the offsets
named, or all of them. Where one of the offsets has no dead letter, none is dropped.

Look first (list, show): what is dropped is nowhere else. The journal must be
writable. While an exporter runs on it this ends with exit code 3.`,
		Args: cobra.ArbitraryArgs,
	}
	place, sink := addJournalLocationFlags(cmd), sinkFlag(cmd)
	all := cmd.Flags().Bool("all", false, "drop all dead letters of the sink")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offsets, err := parseOffsets(args, *all)
		if err != nil {
			return err
		}
		dir, configured, err := place.resolveDirAndSinks()
		if err != nil {
			return err
		}
		r := signals.Request{Kind: signals.DiscardDeadLetters, Sink: *sink, All: *all, Offsets: offsets}
		return inspect.TreatDeadLetters(cmd.Context(), dir, configured, r, cmd.OutOrStdout())
	}
	return cmd
}
