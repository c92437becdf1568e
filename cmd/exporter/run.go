package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/internal/config"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Watch and deliver until told to stop",
		Long: `Watch and deliver until told to stop.

SIGTERM or SIGINT stops watching, delivers what the journal holds for at most
delivery.drainTimeout, and exits 0. A second signal, at least a second after the
first, exits at once. Either way
nothing is lost: what was not delivered is in the journal.`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		tuneMemory()
		log := newLogger(cfg.Log, cmd.ErrOrStderr())
		ctx, stop := untilSignal(cmd.Context(), log)
		defer stop()
		return runExporter(ctx, cfg, log)
	}
	return cmd
}

// echo is how long after the first signal further ones are taken for copies of it: a terminal, timeout(1) and many
// wrappers signal a process and its group.
const echo = time.Second

// untilSignal returns a context that ends with the first SIGTERM or SIGINT. A second one, later than an echo of the first,
// ends the process.
func untilSignal(parent context.Context, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	released := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					log.Info("stopping; the same signal again stops hard", "signal", s.String())
					cancel()
				case time.Since(first) > echo:
					log.Warn("stopped hard; what was not delivered is in the journal", "signal", s.String())
					os.Exit(exitRuntime)
				}
			case <-released:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(released)
		cancel()
	}
}

func newLogger(cfg config.Log, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.SlogLevel()}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if cfg.Format == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	log := slog.New(handler)
	// client-go reports every retry; the source's own lines say what changed. Its lines are there at level debug.
	klog.SetSlogLogger(slog.New(debugOnly{handler}))
	return log
}

// debugOnly passes records of any level on as debug records.
type debugOnly struct{ slog.Handler }

func (h debugOnly) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h debugOnly) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h debugOnly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugOnly{h.Handler.WithAttrs(attrs)}
}

func (h debugOnly) WithGroup(name string) slog.Handler { return debugOnly{h.Handler.WithGroup(name)} }
