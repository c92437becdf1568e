package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func deadletterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletter",
		Short: "Look at, retry and discard what a sink of a stopped exporter gave up on",
		Long: `Look at, retry and discard what a sink of a stopped exporter gave up on.

A dead letter is a change that the destination has refused for ever. It is kept in
the journal, and counts against journal.maxBytes, until it is discarded.

Once the cause is cured, retry delivers those that no newer change of the same object
has followed. The next change of the others carried the whole state.`,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a subcommand is missing: list, show, retry or discard")
		},
	}
	onlyCommands(cmd)
	cmd.AddCommand(deadletterListCommand(), deadletterShowCommand(), deadletterRetryCommand(), deadletterDiscardCommand())
	return cmd
}

// sinkFlag adds --sink.
func sinkFlag(cmd *cobra.Command) *string {
	name := cmd.Flags().String("sink", "", "name of the sink")
	if err := cmd.MarkFlagRequired("sink"); err != nil {
		panic(err) // the flag is defined one line above
	}
	completeFlag(cmd, "sink", sinkNames)
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
