package app

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/internal/telemetry"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// closeTimeout bounds the time to close connections during a stop.
const closeTimeout = 5 * time.Second

// shared is the part of the process that every composition uses and none owns.
type shared struct {
	version    string
	log        *slog.Logger
	admin      *admin.Server
	telemetry  *telemetry.Telemetry // nil unless the environment asks for it
	membership membership
}

// app is the process: everything that stays the same under every configuration.
type app struct {
	*shared
	level     *slog.LevelVar // of log
	secrets   mask
	failure   *failure // of a task that belongs to no composition
	reloader  *reloader
	terms     *terms
	tokens    *signals.TokenGuard // of signals at the admin server
	timelines *admin.Timelines

	adminTask, configTask, handoverTask, signalTask *task
}

func newApp(version string, secrets mask, log *slog.Logger, level *slog.LevelVar) *app {
	a := &app{
		shared: &shared{version: version, log: log}, level: level, secrets: secrets, failure: newFailure(),
	}
	a.terms = &terms{shared: a.shared, failure: a.failure, handovers: make(chan handover)}
	a.reloader = &reloader{
		log: log, current: a.terms.current.Load, apply: a.applyConfig, condition: condition.New(log, "configuration", condition.Problem{}),
		refusal: func(began time.Time, err error) { a.telemetry.RecordSpan("reload", began, err) },
	}
	return a
}

// run opens, runs and stops everything. It returns nil after an orderly stop.
func (a *app) run(ctx context.Context, cfg *config.Config) error {
	if err := a.openProcess(cfg); err != nil {
		return exit.With(exit.Environment, errors.Join(err, a.closeProcess()))
	}
	if err := a.startProcessTasks(); err != nil {
		a.stopProcessTasks()
		return exit.With(exit.Environment, errors.Join(err, a.closeProcess()))
	}
	a.log.Info("started", "version", a.version, "rules", len(cfg.Resources), "sinks", len(cfg.Sinks), "journal", cfg.Journal.Dir,
		"admin", a.adminAddress(), "configuration", cfg.Hash)
	failed := a.terms.runTerms(ctx, a.configTask.stop)
	a.stopProcessTasks()
	if err := errors.Join(failed, a.closeProcess()); err != nil {
		return withExitCode(failed, err)
	}
	a.log.Info("stopped")
	return nil
}

// withExitCode adds the exit code for a failed run to err. The source detects some problems of the environment only after
// the start; these have the code of a failed start.
func withExitCode(cause, err error) error {
	forbidden, found := errors.AsType[*source.ForbiddenError](cause)
	if errors.As(cause, new(*source.StartError)) || found && forbidden.AtStart {
		return exit.With(exit.Environment, err)
	}
	return exit.With(exit.Runtime, err)
}

// openProcess makes everything and starts nothing. Its errors are problems of the environment.
func (a *app) openProcess(cfg *config.Config) error {
	a.tokens = signals.NewTokenGuard(func() credentials.Secret { return a.activeConfig().Admin.Signals.Token }, a.log)
	a.timelines = &admin.Timelines{Ask: a.askTimeline, Password: rand.Text()}
	a.admin = admin.New(admin.Options{
		Listen: cfg.Admin.Listen, Version: a.version, Snapshot: a.buildSnapshot, DeadLetters: a.newestDeadLetters, Logger: a.log, Timelines: a.timelines,
		Signals: map[string]http.Handler{signals.Path: a.tokens.Wrap(signals.NewHTTPHandler(signalHandler{a.terms.current.Load}))},
	})
	a.telemetry = telemetry.Start(context.Background(), telemetry.Options{
		Version: a.version, Metrics: a.admin.Metrics(), Mask: a.secrets.maskText, Log: a.log,
	})
	c, err := newComposition(a.shared, cfg, "start")
	if err != nil {
		return err
	}
	if err := a.membership.openElection(cfg, a.version, a.log); err != nil {
		return errors.Join(err, c.closeParts())
	}
	a.terms.current.Store(c)
	a.reloader.activeHash.Store(&cfg.Hash)
	return c.openParts(context.Background(), nil, a.failure.reportError)
}

// startProcessTasks starts the tasks that outlive every composition.
func (a *app) startProcessTasks() error {
	if a.activeConfig().Admin.Listen != "" {
		if err := a.admin.Listen(); err != nil {
			return fmt.Errorf("admin.listen: %w", err)
		}
		a.adminTask = startTask("admin", a.admin.Run, a.failure.reportError)
	}
	a.offerTimeline(a.activeConfig())
	if a.membership.election != nil {
		a.membership.startElection(a.failure.reportError)
		a.handoverTask = startTask("handover", a.terms.runHandovers, a.failure.reportError)
	}
	a.configTask = startTask("configuration", a.reloader.run, a.failure.reportError)
	a.startSignals()
	return nil
}

func (a *app) adminAddress() string {
	if a.adminTask == nil {
		return "off"
	}
	return a.admin.Addr().String()
}

// stopProcessTasks stops the tasks in the opposite order of startProcessTasks: the admin server last, so that the stop can
// be observed. The Lease is released only now, when nothing is published any more.
func (a *app) stopProcessTasks() {
	a.signalTask.stop()
	a.configTask.stop()
	a.handoverTask.stop()
	a.membership.electionTask.stop() // releases the Lease, if this process holds it
	a.adminTask.stop()
	_ = os.Remove(TimelineFile(a.activeConfig())) // there may be none
}

func (a *app) closeProcess() error {
	a.reloader.condition.Close()
	a.tokens.Close()
	defer a.telemetry.Stop()
	c := a.terms.current.Load()
	if c == nil {
		return nil
	}
	err := c.closeParts()
	if c.memory != nil {
		err = errors.Join(err, c.memory.close())
	}
	return err
}

func (a *app) activeConfig() *config.Config { return a.terms.current.Load().cfg }

// applyConfig stops the composition of the active configuration and starts one of cfg. accepted is called in between. An
// error before that means that cfg is refused and nothing has changed; a later failure ends the process, and the next start
// uses cfg. Only the task of the reloader calls it.
func (a *app) applyConfig(ctx context.Context, cfg *config.Config, accepted func()) error {
	before := a.activeConfig()
	if before.Journal.Dir == cfg.Journal.Dir { // a restart would not help
		if err := a.terms.current.Load().journal.CheckClusterName(cfg.Cluster.Name); errors.As(err, new(*journal.RenamedError)) {
			return refuseRenamed(cfg, err)
		}
	}
	if keys := changedFixedKeys(before, cfg); len(keys) > 0 {
		return fmt.Errorf("%s cannot change while the exporter runs: restart it", strings.Join(keys, ", "))
	}
	a.secrets.replaceSecrets(slices.Concat(before.Secrets(), cfg.Secrets(), telemetry.Secrets()))
	return a.terms.replace(ctx, cfg, func() {
		a.level.Set(cfg.Log.SlogLevel())
		logWarnings(a.log, cfg)
		a.offerTimeline(cfg)
		accepted()
	})
}

// changedFixedKeys returns the changed keys that require a restart of the process.
func changedFixedKeys(before, now *config.Config) (keys []string) {
	for _, k := range []struct {
		key     string
		changed bool
	}{
		{"admin.listen", before.Admin.Listen != now.Admin.Listen},
		{"cluster", before.Cluster != now.Cluster},
		{"election", before.Election != now.Election},
		{"journal.dir", before.Journal.Dir != now.Journal.Dir},
		{"log.format", before.Log.Format != now.Log.Format},
		{"state", before.State != now.State},
	} {
		if k.changed {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// newestDeadLetters returns up to limit of the newest dead letters of a sink, for the status page. Secrets are masked.
func (a *app) newestDeadLetters(sink string, limit int) ([]admin.DeadLetter, error) {
	newest, err := a.terms.current.Load().journal.NewestDeadLetters(sink, limit)
	if err != nil {
		return nil, a.secrets.maskError(err)
	}
	shown := make([]admin.DeadLetter, len(newest))
	for i, d := range newest {
		object := d.Change.Name
		if d.Change.Namespace != "" {
			object = d.Change.Namespace + "/" + object
		}
		shown[i] = admin.DeadLetter{
			Offset: d.Offset, Time: d.Time, Type: string(d.Change.Type), Resource: d.Change.Resource.String(), Object: object,
			Reason: a.secrets.maskText(d.Reason),
		}
	}
	return shown, nil
}

// task is a goroutine that runs until it is stopped: the source, a pipeline, the journal, the admin server. Tasks are
// stopped one by one, in the order of composition.stopTasks and app.stopProcessTasks.
type task struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startTask runs a task in its own goroutine, with a context of its own. If run returns an error before stop was called,
// failed is called with that error, once.
func startTask(name string, run func(context.Context) error, failed func(error)) *task {
	ctx, cancel := context.WithCancel(context.Background())
	t := &task{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			failed(fmt.Errorf("%s: %w", name, err))
		}
	}()
	return t
}

// stop ends the context of the task and waits until it has returned. A nil task was never started, and stop does nothing.
func (t *task) stop() {
	if t == nil {
		return
	}
	t.cancel()
	<-t.done
}

// failure records the first error of any task. It is safe for concurrent use.
type failure struct {
	once     sync.Once
	occurred chan struct{} // closed after err is set
	err      error
}

func newFailure() *failure { return &failure{occurred: make(chan struct{})} }

func (f *failure) reportError(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.occurred)
	})
}

func (f *failure) firstError() error {
	select {
	case <-f.occurred:
		return f.err
	default:
		return nil
	}
}

// Run runs the exporter until ctx ends, the process is signalled or a part fails, and returns nil after an orderly stop. It
// applies changes of the configuration file meanwhile. version is that of the program; the log is written to w. It handles
// the signals of the process, so it can run only once at a time.
func Run(ctx context.Context, cfg *config.Config, version string, w io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
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
		for tooLong := true; tooLong; { // the end of such a line is one of its own
			lines := bufio.NewScanner(r)
			for lines.Scan() {
				log.Warn("another program, or a library, has written to the standard error", "text", lines.Text())
			}
			tooLong = errors.Is(lines.Err(), bufio.ErrTooLong)
		}
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

// gcPercent is the growth of the heap, in percent, that starts a garbage collection, unless GOGC is set. The heap is mostly
// known objects and bounded buffers with few pointers, so a collection is cheap compared to the memory that it saves: see
// docs/adr/0010-collect-garbage-at-half.md.
const gcPercent = 50

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

// restConfig finds the API server like kubectl: the configured kubeconfig, else $KUBECONFIG, else ~/.kube/config, else the
// service account of the Pod.
func restConfig(c config.Cluster) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.Context}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("no cluster to watch: set cluster.kubeconfig or $KUBECONFIG, or run inside a Pod with a service account")
	}
	if err != nil && strings.HasPrefix(err.Error(), "error loading config file") { // it may quote the file
		return nil, fmt.Errorf("the kubeconfig (%s) cannot be read as one", strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// NewClient returns a client for the configured cluster; version is that of the program. It opens no connection. The caller
// closes it.
func NewClient(cfg *config.Config, version string) (*apiserver.Client, error) {
	return apiserver.NewReloadingClient(func() (*rest.Config, error) { return restConfig(cfg.Cluster) }, version)
}
