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
	taken     atomic.Uint64
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

// longestRefusal bounds the reason that is shown, in bytes.
const longestRefusal = 600

// followConfiguration takes up what becomes of the configuration's file, until ctx ends.
func (a *app) followConfiguration(ctx context.Context) error {
	file := a.now.Load().cfg.File
	changed := make(chan struct{}, 1)
	watching := start("watch of the configuration", func(ctx context.Context) error {
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
			a.reread(ctx, file, false)
		case <-a.reloads.hangup:
			a.reread(ctx, file, true)
		}
	}
}

// reread reads the file, and takes up what it says. asked says that somebody wants it read whether it has changed or not:
// what it refers to, such as passwords in files, may have.
func (a *app) reread(ctx context.Context, file string, asked bool) {
	before := a.now.Load().cfg
	cfg, err := config.Load(file)
	if err == nil && (asked || cfg.Hash != before.Hash) {
		err = a.reload(ctx, cfg)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.reloads.refused.Add(1)
		a.reloads.condition.Become(configRefused, refusal(err), "mend the file; it is read again at once")
	default:
		a.reloads.condition.Become(configCurrent, "", "")
	}
}

// refusal is why a configuration is refused, in one line.
func refusal(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > longestRefusal {
		text = strings.ToValidUTF8(text[:longestRefusal], "") + "…"
	}
	return text
}

// configStatus is what is shown of the configuration.
func (a *app) configStatus() admin.ConfigStatus {
	return admin.ConfigStatus{
		Hash: a.now.Load().cfg.Hash, Refused: a.reloads.condition.Status().Degraded(),
		Reloads: a.reloads.taken.Load(), Refusals: a.reloads.refused.Load(),
	}
}

// reload puts another configuration in the place of the one that works. An error says that the other one is refused and
// nothing was touched. A failure after that ends the process: the next one starts with the new configuration.
func (a *app) reload(ctx context.Context, cfg *config.Config) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	before := a.now.Load()
	if keys := fixed(before.cfg, cfg); len(keys) > 0 {
		return fmt.Errorf("%s cannot change while the exporter runs: restart it", strings.Join(keys, ", "))
	}
	share, why := before, before.whole(cfg)
	if why != "" {
		share = nil
	}
	a.secrets.replace(slices.Concat(before.cfg.Secrets(), cfg.Secrets()))
	next, err := a.prepare(cfg, share)
	if err != nil {
		return err
	}
	a.level.Set(cfg.Log.SlogLevel())
	for _, warning := range cfg.Warnings {
		a.log.Warn("the configuration is suspicious", "at", warning.String())
	}
	if why != "" {
		a.log.Info("the configuration has changed; everything begins again where it is", "reason", why)
		a.changing.Unlock()
		err = a.handOver(ctx, next)
		a.changing.Lock()
	} else if err = next.takeOver(ctx, before); err != nil && ctx.Err() == nil {
		a.failure.report(exit.With(exit.Environment, fmt.Errorf("take up the changed configuration: %w", err)))
	}
	if err != nil {
		return err
	}
	a.reloads.taken.Add(1)
	a.log.Info("the changed configuration works", "configuration", cfg.Hash, "before", before.cfg.Hash)
	return nil
}

// fixed are the keys that differ and cannot while the process runs.
func fixed(before, now *config.Config) (keys []string) {
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

// whole says why everything has to stop for a while; "" where it has not.
func (c *composition) whole(now *config.Config) string {
	before := c.cfg
	switch {
	case c.ended || c.watching == nil:
		return "it is not at work"
	case before.Journal != now.Journal:
		return "the journal is opened with other bounds"
	case !reflect.DeepEqual(before.Audit, now.Audit):
		return "audit has changed"
	case before.Redaction != now.Redaction:
		return "redaction.key has changed"
	case redactionOf(before) != redactionOf(now) && (!redactsByDefault(before) || !redactsByDefault(now)):
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

// takeOver stops what before has and c has not, starts what is new, and leaves the rest alone.
func (c *composition) takeOver(ctx context.Context, before *composition) (err error) {
	c.client, c.journal, c.source, c.recovered = before.client, before.journal, before.source, before.recovered
	c.replica, c.failed = before.replica, before.failed
	c.journaling, c.watching, c.shaper, c.naming = before.journaling, before.watching, before.shaper, before.naming
	edited := !reflect.DeepEqual(before.cfg.Resources, c.cfg.Resources) || before.cfg.NeedsBefore() != c.cfg.NeedsBefore()
	if edited {
		if c.shaper, err = newShaper(c.cfg, c.journal); err != nil {
			return errors.Join(err, c.closeRunners(before))
		}
		if before.cfg.NeedsBefore() == c.cfg.NeedsBefore() {
			c.shaper.Keep(before.shaper, sameRules(before.cfg.Resources, c.cfg.Resources))
		}
	}
	if err := c.takeOverSinks(ctx, before); err != nil {
		return errors.Join(err, c.closeRunners(before))
	}
	if !edited {
		return nil
	}
	if err := c.journal.SetRedaction(ctx, redactionOf(c.cfg)); err != nil {
		return err
	}
	c.naming.follow(c.cfg)
	c.source.Edit(source.Edit{
		Rules: Rules(c.cfg), Load: c.shaper.Load(c.journal.LoadResource), Shape: c.shaper.Shape, Reshaped: reshaped(before.cfg, c.cfg),
	})
	return nil
}

// takeOverSinks ends the sinks that are gone or changed, where they are, and starts those that are new or changed.
func (c *composition) takeOverSinks(ctx context.Context, before *composition) error {
	var gone []*runner
	for _, r := range before.runners {
		if c.runnerOf(r.id) == nil {
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
	if err := c.connect(); err != nil {
		return err
	}
	c.working.Store(true)
	c.now.Store(c)
	for _, r := range c.runners {
		if before.runnerOf(r.id) == nil {
			r.start(c.cfg.Delivery.Retry, c.failed.report)
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
		if r.status().NotReady == "" {
			alive = append(alive, r)
			continue
		}
		r.stop(over)
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
			if err := c.journal.Withdraw(ctx, s.Name); err != nil {
				return err
			}
		}
	}
	for _, s := range c.cfg.Sinks {
		if !named(before.cfg.Sinks, s.Name) {
			if err := c.journal.Declare(ctx, s.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameRules says for each rule of now which one of before does the same to changes: the same rule, else one with the same
// policy; -1 for none. Each is named once.
func sameRules(before, now []config.Resource) []int {
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

// reshaped says of which resources another thing is emitted under the rules of now.
func reshaped(before, now *config.Config) func(event.Resource) bool {
	ruleBefore, ruleNow := ruleOf(before), ruleOf(now)
	return func(r event.Resource) bool {
		i, was := ruleBefore(r)
		j, is := ruleNow(r)
		return was && is && (before.NeedsBefore() != now.NeedsBefore() || !samePolicy(before.Resources[i].Policy, now.Resources[j].Policy))
	}
}
