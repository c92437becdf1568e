package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kubecdc/kubecdc/internal/screen/terminal"
)

// colorFlag adds --color to a command that people look at.
func colorFlag(cmd *cobra.Command) *choice {
	return choiceFlag(cmd, "color", "", "colors: auto (on a terminal, unless NO_COLOR is set), always or never", "auto", "always", "never")
}

func (c *choice) useColor(out io.Writer) bool {
	if c.value != "auto" {
		return c.value == "always"
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
