package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// reloads is what became of the changes of the configuration's file.
type reloads struct {
	condition *condition.Condition
	hangup    chan os.Signal // asks for a reload; nil for never
	applied   atomic.Uint64
	refused   atomic.Uint64
}

// The conditions of the configuration.
var (
	configCurrent = condition.State{Name: "current", Message: "the configuration that works is the one in the file"}
	configRefused = condition.State{
		Name: "refused", Severity: condition.Degraded, Level: slog.LevelError,
		Message: "the configuration in the file is refused; the one before goes on",
	}
)

// maxRefusalBytes bounds the reason that is shown, in bytes.
const maxRefusalBytes = 600

// watchConfigFile takes up what becomes of the configuration's file, until ctx ends.
func (a *app) watchConfigFile(ctx context.Context) error {
	file := a.current.Load().cfg.File
	changed := make(chan struct{}, 1)
	watching := startTask("watch of the configuration", func(ctx context.Context) error {
		return config.Watch(ctx, file, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}, func(err error) {
		a.log.Warn("changes of the configuration's file are not noticed; SIGHUP reads it again", "file", file, "error", err)
	})
	defer watching.stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			a.reloadFile(ctx, file, false)
		case <-a.reloads.hangup:
			a.reloadFile(ctx, file, true)
		}
	}
}

// reloadFile reads the file, and takes up what it says. asked says that somebody wants it read whether it has changed or not:
// what it refers to, such as passwords in files, may have.
func (a *app) reloadFile(ctx context.Context, file string, asked bool) {
	before := a.current.Load().cfg
	cfg, err := config.Load(file)
	if err == nil && (asked || cfg.Hash != before.Hash) {
		err = a.applyConfig(ctx, cfg)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.reloads.refused.Add(1)
		a.reloads.condition.Update(configRefused, refusalText(err), "mend the file; it is read again at once")
	default:
		a.reloads.condition.Update(configCurrent, "", "")
	}
}

// refusalText is why a configuration is refused, in one line.
func refusalText(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxRefusalBytes {
		text = strings.ToValidUTF8(text[:maxRefusalBytes], "") + "…"
	}
	return text
}

// configStatus is what is shown of the configuration.
func (a *app) configStatus() admin.ConfigStatus {
	return admin.ConfigStatus{
		Hash: a.current.Load().cfg.Hash, Refused: a.reloads.condition.Status().Degraded(),
		Reloads: a.reloads.applied.Load(), Refusals: a.reloads.refused.Load(),
	}
}

// applyConfig puts another configuration in the place of the one that works. An error says that the other one is refused and
// nothing was touched. A failure after that ends the process: the next one starts with the new configuration.
func (a *app) applyConfig(ctx context.Context, cfg *config.Config) error {
	a.changeMu.Lock()
	defer a.changeMu.Unlock()
	before := a.current.Load()
	if keys := changedFixedKeys(before.cfg, cfg); len(keys) > 0 {
		return fmt.Errorf("%s cannot change while the exporter runs: restart it", strings.Join(keys, ", "))
	}
	share, why := before, before.restartReason(cfg)
	if why != "" {
		share = nil
	}
	a.secrets.replaceSecrets(slices.Concat(before.cfg.Secrets(), cfg.Secrets()))
	next, err := a.prepareComposition(cfg, share)
	if err != nil {
		return err
	}
	a.level.Set(cfg.Log.SlogLevel())
	for _, warning := range cfg.Warnings {
		a.log.Warn("the configuration is suspicious", "at", warning.String())
	}
	if why != "" {
		a.log.Info("the configuration has changed; everything begins again where it is", "reason", why)
		a.changeMu.Unlock()
		err = a.requestHandover(ctx, next)
		a.changeMu.Lock()
	} else if err = next.adoptFrom(ctx, before); err != nil && ctx.Err() == nil {
		a.failure.reportError(exit.With(exit.Environment, fmt.Errorf("take up the changed configuration: %w", err)))
	}
	if err != nil {
		return err
	}
	a.reloads.applied.Add(1)
	a.log.Info("the changed configuration works", "configuration", cfg.Hash, "before", before.cfg.Hash)
	return nil
}

// changedFixedKeys are the keys that differ and cannot while the process runs.
func changedFixedKeys(before, now *config.Config) (keys []string) {
	for _, k := range []struct {
		key    string
		differ bool
	}{
		{"admin.listen", before.Admin.Listen != now.Admin.Listen},
		{"cluster", before.Cluster != now.Cluster},
		{"election", before.Election != now.Election},
		{"journal.dir", before.Journal.Dir != now.Journal.Dir},
		{"log.format", before.Log.Format != now.Log.Format},
		{"state", before.State != now.State},
	} {
		if k.differ {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// restartReason says why everything has to stop for a while; "" where it has not.
func (c *composition) restartReason(now *config.Config) string {
	before := c.cfg
	switch {
	case c.ended || c.sourceTask == nil:
		return "it is not at work"
	case before.Journal != now.Journal:
		return "the journal is opened with other bounds"
	case !reflect.DeepEqual(before.Audit, now.Audit):
		return "audit has changed"
	case before.Redaction != now.Redaction:
		return "redaction.key has changed"
	case redactionFingerprint(before) != redactionFingerprint(now) && (!redactsByDefault(before) || !redactsByDefault(now)):
		return "the rules redact otherwise, and what the journal holds has to be redacted again"
	case c.replica != nil && !sameDelivery(before, now):
		return "the sinks have changed, and with a replicated state all are asked what they hold"
	}
	return ""
}

// sameDelivery says whether all sinks go on as they are.
func sameDelivery(before, now *config.Config) bool {
	return reflect.DeepEqual(before.Sinks, now.Sinks) && reflect.DeepEqual(before.Routes, now.Routes) && before.Delivery == now.Delivery
}

// adoptFrom stops what before has and c has not, starts what is new, and leaves the rest alone.
func (c *composition) adoptFrom(ctx context.Context, before *composition) (err error) {
	c.client, c.journal, c.source, c.journalRecovered = before.client, before.journal, before.source, before.journalRecovered
	c.replica, c.failed = before.replica, before.failed
	c.journalTask, c.sourceTask, c.shaper, c.attribution = before.journalTask, before.sourceTask, before.shaper, before.attribution
	edited := !reflect.DeepEqual(before.cfg.Resources, c.cfg.Resources) || before.cfg.NeedsBefore() != c.cfg.NeedsBefore()
	if edited {
		if c.shaper, err = newShaper(c.cfg, c.journal); err != nil {
			return errors.Join(err, c.closeRunners(before))
		}
		if before.cfg.NeedsBefore() == c.cfg.NeedsBefore() {
			c.shaper.InheritCounters(before.shaper, matchingRules(before.cfg.Resources, c.cfg.Resources))
		}
	}
	if err := c.replaceSinks(ctx, before); err != nil {
		return errors.Join(err, c.closeRunners(before))
	}
	if !edited {
		return nil
	}
	if err := c.journal.SetRedaction(ctx, redactionFingerprint(c.cfg)); err != nil {
		return err
	}
	c.attribution.updateRules(c.cfg)
	c.source.Edit(source.Edit{
		Rules: SelectionRules(c.cfg), Load: c.shaper.WrapLoad(c.journal.LoadResource), Shape: c.shaper.WrapAppend, Reshaped: policyChanged(before.cfg, c.cfg),
	})
	return nil
}

// replaceSinks ends the sinks that are gone or changed, where they are, and starts those that are new or changed.
func (c *composition) replaceSinks(ctx context.Context, before *composition) error {
	var gone []*runner
	for _, r := range before.runners {
		if c.runnerByID(r.id) == nil {
			gone = append(gone, r)
		}
	}
	before.drainRunners(ctx, gone)
	if err := before.closeRunners(c); err != nil {
		c.log.Warn("a sink that is not used any more could not be closed in order", "error", err)
	}
	if err := c.declareSinks(ctx, before); err != nil {
		return err
	}
	if err := c.openSinks(); err != nil {
		return err
	}
	c.opened.Store(true)
	c.current.Store(c)
	for _, r := range c.runners {
		if before.runnerByID(r.id) == nil {
			r.startDelivery(c.cfg.Delivery.Retry, c.failed.reportError)
			c.log.Info("sink started", "sink", r.name)
		}
	}
	return nil
}

// drainRunners lets sinks deliver what the journal holds for as long as the configuration allows, and stops them. One that
// nothing gets through to is not waited for: it would take all the time, and the new configuration may be what cures it.
func (c *composition) drainRunners(ctx context.Context, runners []*runner) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Delivery.DrainTimeout)
	defer cancel()
	over, end := context.WithCancel(ctx)
	end()
	var alive []*runner
	for _, r := range runners {
		if r.sinkStatus().NotReady == "" {
			alive = append(alive, r)
			continue
		}
		r.stopDelivery(over)
	}
	c.stopRunners(ctx, alive)
}

// declareSinks tells the journal which sinks there are now.
func (c *composition) declareSinks(ctx context.Context, before *composition) error {
	named := func(all []config.Sink, name string) bool {
		return slices.ContainsFunc(all, func(s config.Sink) bool { return s.Name == name })
	}
	for _, s := range before.cfg.Sinks {
		if !named(c.cfg.Sinks, s.Name) {
			if err := c.journal.RemoveSink(ctx, s.Name); err != nil {
				return err
			}
		}
	}
	for _, s := range c.cfg.Sinks {
		if !named(before.cfg.Sinks, s.Name) {
			if err := c.journal.AddSink(ctx, s.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// matchingRules says for each rule of now which one of before does the same to changes: the same rule, else one with the same
// policy; -1 for none. Each is named once.
func matchingRules(before, now []config.Resource) []int {
	same := make([]int, len(now))
	for i := range same {
		same[i] = -1
	}
	match := func(equal func(a, b config.Resource) bool) {
		for i, rule := range now {
			for j := 0; j < len(before) && same[i] < 0; j++ {
				if !slices.Contains(same, j) && equal(before[j], rule) {
					same[i] = j
				}
			}
		}
	}
	match(func(a, b config.Resource) bool { return reflect.DeepEqual(a, b) })
	match(func(a, b config.Resource) bool { return samePolicy(a.Policy, b.Policy) })
	return same
}

func samePolicy(a, b shape.Policy) bool { return reflect.DeepEqual(a, b) }

// policyChanged says of which resources another thing is emitted under the rules of now.
func policyChanged(before, now *config.Config) func(event.Resource) bool {
	ruleBefore, ruleNow := ruleMatcher(before), ruleMatcher(now)
	return func(r event.Resource) bool {
		i, was := ruleBefore(r)
		j, is := ruleNow(r)
		return was && is && (before.NeedsBefore() != now.NeedsBefore() || !samePolicy(before.Resources[i].Policy, now.Resources[j].Policy))
	}
}
