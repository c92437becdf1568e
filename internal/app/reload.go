package app

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

// reloader watches the configuration file and applies its changes.
type reloader struct {
	log        *slog.Logger
	current    func() *composition
	apply      func(ctx context.Context, cfg *config.Config, accepted func()) error
	refusal    func(began time.Time, err error) // records a refused configuration
	condition  *condition.Condition
	hangup     chan os.Signal         // requests a reload; nil for never
	activeHash atomic.Pointer[string] // of the configuration that was in force last
	pending    bool                   // the current composition is not in force yet; owned by run
	applied    atomic.Uint64
	refused    atomic.Uint64
}

const (
	maxRefusalBytes = 600         // bounds the reason that is shown
	pendingInterval = time.Second // between two looks at what a pending configuration waits for
)

func newReloader(
	log *slog.Logger, current func() *composition, apply func(context.Context, *config.Config, func()) error,
) *reloader {
	return &reloader{log: log, current: current, apply: apply, condition: condition.New(log, "configuration", condition.Problem{})}
}

// run applies changes of the configuration file until ctx ends.
func (r *reloader) run(ctx context.Context) error {
	file := r.current().cfg.File
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait() // ctx has ended
	watching.Go(func() {
		config.Watch(ctx, file, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	tick := time.NewTicker(pendingInterval)
	defer tick.Stop()
	for {
		var applied <-chan struct{}
		if r.pending {
			applied = r.current().applied
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			r.reloadFile(ctx, file, false)
		case <-r.hangup:
			r.reloadFile(ctx, file, true)
		case <-applied:
			r.recordApplied()
		case <-tick.C:
		}
		r.updatePending()
	}
}

// reloadFile reads the file and applies it. With force it does so even if the file has not changed, because the files that
// it refers to, such as passwords, may have.
func (r *reloader) reloadFile(ctx context.Context, file string, force bool) {
	began := time.Now()
	cfg, err := config.Load(file)
	if err == nil && (force || cfg.Hash != r.current().cfg.Hash) {
		err = r.apply(ctx, cfg, func() {
			r.pending = true
			r.condition.Update(configPending(partsChange), "configuration", cfg.Hash)
		})
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		r.refused.Add(1)
		r.refusal(began, err)
		r.condition.Update(condition.Problem{Code: condition.ConfigRefused, Cause: refusalText(err)})
	case !r.pending:
		r.condition.Clear()
	default:
		r.condition.Update(configPending(r.current().pendingReason()))
	}
}

// updatePending updates the reason why the current composition is not in force yet.
func (r *reloader) updatePending() {
	r.condition.UpdateIf(func(now condition.Status) bool { return r.pending && isPending(now) }, configPending(r.current().pendingReason()))
}

// recordApplied records that the current composition is in force.
func (r *reloader) recordApplied() {
	cfg := r.current().cfg
	before := r.activeHash.Swap(&cfg.Hash)
	r.pending = false
	r.applied.Add(1)
	r.log.Info("changed configuration applied", "configuration", cfg.Hash, "before", *before)
	r.condition.UpdateIf(isPending, condition.Problem{})
}

func configPending(reason string) condition.Problem {
	return condition.Problem{Code: condition.ConfigPending, Cause: reason}
}

func isPending(now condition.Status) bool { return now.Code == condition.ConfigPending }

// refusalText returns the reason of a refusal on one line.
func refusalText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxRefusalBytes {
		text = strings.ToValidUTF8(text[:maxRefusalBytes], "") + "…"
	}
	return text
}

func (r *reloader) configStatus() admin.ConfigStatus {
	return admin.ConfigStatus{Hash: *r.activeHash.Load(), Reloads: map[string]uint64{"taken": r.applied.Load(), "refused": r.refused.Load()}}
}
