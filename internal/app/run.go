package app

import (
	"context"
	"io"
	"log/slog"

	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/internal/config"
)

// Run watches and delivers until ctx or the process is told to end, and returns nil after an orderly stop. version is that
// of the program; the log goes to w. It takes the signals of the process, so it can run once at a time.
func Run(ctx context.Context, cfg *config.Config, version string, w io.Writer) error {
	tuneMemory()
	secrets := newMask(cfg.Secrets())
	log := newLogger(cfg.Log, secrets, w)
	for _, warning := range cfg.Warnings {
		log.Warn("the configuration is suspicious", "at", warning.String())
	}
	ctx, stop := untilSignal(ctx, log)
	defer stop()
	return secrets.err(run(ctx, cfg, version, secrets, log))
}

func newLogger(cfg config.Log, secrets mask, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.SlogLevel(), ReplaceAttr: secrets.attr}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if cfg.Format == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	log := slog.New(handler)
	// client-go reports every retry; the source's own lines say what changed. Its lines are there at level debug.
	klog.SetSlogLogger(slog.New(debugOnly{handler}))
	return log
}

// QuietClients silences what client-go says of its retries, for commands that say themselves what goes wrong.
func QuietClients() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

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
