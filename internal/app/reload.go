package app

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

// reloader watches the configuration file and applies its changes.
type reloader struct {
	log       *slog.Logger
	active    func() *config.Config
	apply     func(context.Context, *config.Config) error
	condition *condition.Condition
	hangup    chan os.Signal // requests a reload; nil for never
	applied   atomic.Uint64
	refused   atomic.Uint64
}

// The conditions of the configuration.
var (
	configCurrent = condition.State{Name: "current", Message: "the active configuration is the one in the file"}
	configRefused = condition.State{
		Name: "refused", Severity: condition.Degraded, Level: slog.LevelError,
		Message: "the configuration in the file is refused; the previous one stays active",
	}
)

// maxRefusalBytes bounds the reason that is shown.
const maxRefusalBytes = 600

func newReloader(log *slog.Logger, active func() *config.Config, apply func(context.Context, *config.Config) error) *reloader {
	return &reloader{log: log, active: active, apply: apply, condition: condition.New(log, configCurrent)}
}

// run applies changes of the configuration file until ctx ends. Without a working watch, only SIGHUP reloads the file.
func (r *reloader) run(ctx context.Context) error {
	file := r.active().File
	changed := make(chan struct{}, 1)
	watching := startTask("watch of the configuration", func(ctx context.Context) error {
		return config.Watch(ctx, file, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}, func(err error) {
		r.log.Warn("changes of the configuration file are not noticed; SIGHUP reads it again", "file", file, "error", err)
	})
	defer watching.stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			r.reloadFile(ctx, file, false)
		case <-r.hangup:
			r.reloadFile(ctx, file, true)
		}
	}
}

// reloadFile reads the file and applies it. With force it does so even if the file has not changed, because the files that
// it refers to, such as passwords, may have.
func (r *reloader) reloadFile(ctx context.Context, file string, force bool) {
	before := r.active()
	cfg, err := config.Load(file)
	if err == nil && (force || cfg.Hash != before.Hash) {
		err = r.apply(ctx, cfg)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.refused.Add(1)
		r.condition.Update(configRefused, refusalText(err), "correct the file; it is read again at once")
	default:
		r.condition.Update(configCurrent, "", "")
	}
}

// refusalText returns the reason of a refusal on one line.
func refusalText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxRefusalBytes {
		text = strings.ToValidUTF8(text[:maxRefusalBytes], "") + "…"
	}
	return text
}

func (r *reloader) configStatus(hash string) admin.ConfigStatus {
	return admin.ConfigStatus{
		Hash: hash, Refused: r.condition.Status().Degraded(), Reloads: r.applied.Load(), Refusals: r.refused.Load(),
	}
}
