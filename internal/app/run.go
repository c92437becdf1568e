package app

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/telemetry"
)

// Run runs the exporter until ctx ends, the process is signalled or a part fails, and returns nil after an orderly stop. It
// applies changes of the configuration file meanwhile. version is that of the program; the log is written to w. It handles
// the signals of the process, so it can run only once at a time.
func Run(ctx context.Context, cfg *config.Config, version string, w io.Writer) error {
	tuneMemory()
	secrets, level := newMask(slices.Concat(cfg.Secrets(), telemetry.Secrets())), &slog.LevelVar{}
	log := newLogger(cfg.Log, level, secrets, w)
	logWarnings(log, cfg)
	defer logStandardError(log)()
	ctx, stop := contextUntilSignal(ctx, log, signalEchoWindow)
	defer stop()
	a := newApp(version, secrets, log, level)
	a.reloader.hangup = make(chan os.Signal, 1)
	signal.Notify(a.reloader.hangup, syscall.SIGHUP)
	defer signal.Stop(a.reloader.hangup)
	return secrets.maskError(a.run(ctx, cfg))
}

func logWarnings(log *slog.Logger, cfg *config.Config) {
	for _, warning := range cfg.Warnings {
		log.Warn("the configuration is suspicious", "at", warning.String())
	}
}

// logStandardError logs what something else writes to the standard error, such as a program that gives the credentials for
// the API server, so that the log has one form. restore ends that.
func logStandardError(log *slog.Logger) (restore func()) {
	r, w, err := os.Pipe()
	if err != nil {
		return func() {}
	}
	before, done := os.Stderr, make(chan struct{})
	os.Stderr = w
	go func() {
		defer close(done)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			log.Warn("another program, or a library, has written to the standard error", "text", lines.Text())
		}
		_, _ = io.Copy(io.Discard, r) // after a line that is too long
	}()
	return func() {
		os.Stderr = before
		_ = w.Close()
		_ = r.SetReadDeadline(time.Now().Add(time.Second)) // a program may still have it open
		<-done
		_ = r.Close()
	}
}

// newLogger returns a logger and sets level to the configured one; level may be changed later.
func newLogger(cfg config.Log, level *slog.LevelVar, secrets mask, w io.Writer) *slog.Logger {
	level.Set(cfg.SlogLevel())
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: secrets.maskAttr}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if cfg.Format == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	log := slog.New(handler)
	// client-go logs every retry, while the source logs each change of state once. The lines of client-go are at level
	// debug.
	klog.SetSlogLogger(slog.New(debugOnly{handler}))
	return log
}

// SilenceClientLogs discards the log of client-go, for commands that report errors themselves.
func SilenceClientLogs() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

// debugOnly lowers every record to level debug. Records below that are dropped: client-go writes whole bodies in them.
type debugOnly struct{ slog.Handler }

func (h debugOnly) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelDebug && h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h debugOnly) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h debugOnly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugOnly{h.Handler.WithAttrs(attrs)}
}

func (h debugOnly) WithGroup(name string) slog.Handler { return debugOnly{h.Handler.WithGroup(name)} }

// gcPercent is the growth of the heap, in percent, that starts a garbage collection. The heap is mostly known objects and
// bounded buffers with few pointers, so a collection is cheap compared to the memory that it saves: see
// docs/adr/0010-collect-garbage-at-half.md.
const gcPercent = 50

// tuneMemory sets gcPercent unless GOGC is set. GOMEMLIMIT has its usual effect.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// signalEchoWindow is the time after the first signal in which further ones are ignored: a terminal, timeout(1) and many
// wrappers signal both a process and its group.
const signalEchoWindow = time.Second

// contextUntilSignal returns a context that ends with the first SIGTERM or SIGINT. A later signal, after the echo window,
// ends the process. release restores the default handling of signals.
func contextUntilSignal(parent context.Context, log *slog.Logger, echo time.Duration) (ctx context.Context, release func()) {
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
					log.Info("stopping; the same signal again stops at once", "signal", s.String())
					cancel()
				case time.Since(first) > echo:
					log.Warn("stopped at once; undelivered changes are in the journal", "signal", s.String())
					os.Exit(int(exit.Runtime))
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
