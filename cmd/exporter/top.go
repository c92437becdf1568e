package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kubecdc/kubecdc/internal/screen/top"
)

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [--address HOST:PORT]",
		Short: "Show a running exporter in the terminal, as its status page does",
		Long: `Show a running exporter in the terminal, as its status page does: what is wrong and
what to do, the pipeline with its rates, the sinks and the resources, the sick first.

Where standard output is no terminal, or with --once, one picture is printed, and the exit
code is 3 if the exporter is not ready.`,
		Example: `  exporter top
  kubectl -n kubecdc port-forward statefulset/exporter 8080 & exporter top`,
		Args: cobra.NoArgs,
	}
	address := cmd.Flags().String("address", "127.0.0.1:8080", "admin address of the exporter, host:port")
	once := cmd.Flags().Bool("once", false, "print one picture and end")
	color := colorFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkAddress(*address); err != nil {
			return err
		}
		ctx, stop := untilInterrupted(cmd.Context())
		defer stop()
		out := outputWithStyles(cmd)
		return top.Run(ctx, top.Options{
			Address: *address, Out: out, Size: func() (int, int) { return sizeOf(out) }, Once: *once || !isTerminal(out), Color: color.useColor(out),
		})
	}
	return cmd
}

// untilInterrupted returns a context that ends with the first ^C or SIGTERM. The next one ends the process.
func untilInterrupted(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// sizeOf is the size of a terminal in characters, and a usual one for what is none.
func sizeOf(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
			return width, height
		}
	}
	return 120, 60
}
