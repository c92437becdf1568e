package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

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
