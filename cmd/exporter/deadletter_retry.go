package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func deadletterRetryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry (OFFSET... | --all) --sink NAME --config FILE",
		Short: "Deliver dead letters of a sink once more, unless a newer change of the object followed",
		Long: `Deliver dead letters of a sink of a stopped exporter once more: those at the offsets
named, or all of them. Those that the destination accepts are dead letters no more.

Only the last dead letter of an object is sent. If a newer change of the object has
followed, it stays: an older change must not follow a newer one. Changes with a body
that could not be redacted and control records stay too. Discard those.

Exit code 1 means that some of them are still dead letters; each is listed with its
reason. The journal must be writable. While an exporter runs on it this ends with
exit code 3.`,
		Args: cobra.ArbitraryArgs,
	}
	path, sink := configFlag(cmd), sinkFlag(cmd)
	all := cmd.Flags().Bool("all", false, "retry all dead letters of the sink")
	timeout := cmd.Flags().Duration("timeout", time.Minute, "how long to try to reach the destination")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		offsets, err := parseOffsets(args, *all)
		if err != nil {
			return err
		}
		cfg, err := config.LoadWithoutSinkFiles(*path)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return inspect.RetryDeadLetters(ctx, cfg, *sink, offsets, cmd.OutOrStdout())
	}
	return cmd
}
