package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kubecdc/kubecdc/internal/screen/terminal"
)

// colorFlag adds --color to a command that people look at.
func colorFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("color", "auto", "colors: auto (on a terminal, unless NO_COLOR is set), always or never")
}

func checkColor(choice string) error {
	if !slices.Contains([]string{"auto", "always", "never"}, choice) {
		return fmt.Errorf("--color %q: expected auto, always or never", choice)
	}
	return nil
}

// useColor reports whether to write in color.
func useColor(choice string, out io.Writer) bool {
	if choice != "auto" {
		return choice == "always"
	}
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(out)
}

// outputWithStyles returns the standard output of a command that colors it, and escapes what it shows.
func outputWithStyles(cmd *cobra.Command) io.Writer {
	if w, ok := cmd.OutOrStdout().(*terminal.Writer); ok {
		return w.Raw
	}
	return cmd.OutOrStdout()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// checkAddress validates a value of --address.
func checkAddress(address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("--address %q: expected host:port, for example localhost:8080", address)
	}
	return nil
}
