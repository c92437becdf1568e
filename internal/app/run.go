package app

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/internal/config"
)

// Run watches and delivers until ctx or the process is told to end, and returns nil after an orderly stop. It takes up what
// becomes of the configuration's file. version is that of the program; the log goes to w. It takes the signals of the
// process, so it can run once at a time.
func Run(ctx context.Context, cfg *config.Config, version string, w io.Writer) error {
	tuneMemory()
	secrets, level := newMask(cfg.Secrets()), &slog.LevelVar{}
	log := newLogger(cfg.Log, level, secrets, w)
	for _, warning := range cfg.Warnings {
		log.Warn("the configuration is suspicious", "at", warning.String())
	}
	ctx, stop := contextUntilSignal(ctx, log, signalEchoWindow)
	defer stop()
	a := newApp(version, secrets, log, level)
	a.reloads.hangup = make(chan os.Signal, 1)
	signal.Notify(a.reloads.hangup, syscall.SIGHUP)
	defer signal.Stop(a.reloads.hangup)
	return secrets.maskError(a.run(ctx, cfg))
}

// newLogger sets level to the configured one; it may be changed later.
func newLogger(cfg config.Log, level *slog.LevelVar, secrets mask, w io.Writer) *slog.Logger {
	level.Set(cfg.SlogLevel())
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: secrets.maskAttr}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if cfg.Format == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	log := slog.New(handler)
	// client-go reports every retry; the source's own lines say what changed. Its lines are there at level debug.
	klog.SetSlogLogger(slog.New(debugOnly{handler}))
	return log
}

// SilenceClientLogs silences what client-go says of its retries, for commands that say themselves what goes wrong.
func SilenceClientLogs() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

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
