package app

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// restartReason returns why the change to now requires to stop and restart every part; "" if the composition can be replaced
// in place. Requires terms.changeMu.
func (c *composition) restartReason(now *config.Config) string {
	before := c.cfg
	switch {
	case phase(c.phase.Load()) != phaseRunning:
		return "it is not running"
	case before.Journal != now.Journal:
		return "the settings of the journal have changed"
	case !reflect.DeepEqual(before.Audit, now.Audit):
		return "audit has changed"
	case before.Redaction != now.Redaction:
		return "redaction.key has changed"
	case redactionFingerprint(before) != redactionFingerprint(now) && (!redactsByDefault(before) || !redactsByDefault(now)):
		return "the redaction of the rules has changed, and the journal has to be redacted again"
	case c.replica != nil && !sameDelivery(before, now):
		return "the sinks have changed, and with a replicated state the progress of every sink has to be read again"
	}
	return ""
}

// sameDelivery reports whether no sink has to be restarted.
func sameDelivery(before, now *config.Config) bool {
	return reflect.DeepEqual(before.Sinks, now.Sinks) && reflect.DeepEqual(before.Routes, now.Routes) && before.Delivery == now.Delivery
}

// adoptFrom replaces before in place: it stops the parts that only before has, starts those that only c has, and adopts the
// rest as they are. install makes c the current composition. Requires terms.changeMu.
func (c *composition) adoptFrom(ctx context.Context, before *composition, install func(*composition)) (err error) {
	c.client, c.journal, c.source, c.journalRecovered = before.client, before.journal, before.source, before.journalRecovered
	c.replica, c.failed = before.replica, before.failed
	c.journalTask, c.sourceTask, c.shaper, c.attribution = before.journalTask, before.sourceTask, before.shaper, before.attribution
	edited := !reflect.DeepEqual(before.cfg.Resources, c.cfg.Resources) || before.cfg.NeedsBefore() != c.cfg.NeedsBefore()
	if edited {
		if c.shaper, err = newShaper(c.cfg, c.journal); err != nil {
			return errors.Join(err, c.sinks.closeExcept(before.sinks))
		}
		if before.cfg.NeedsBefore() == c.cfg.NeedsBefore() {
			c.shaper.InheritCounters(before.shaper, matchingRules(before.cfg.Resources, c.cfg.Resources))
		}
	}
	if err := c.replaceSinks(ctx, before, install); err != nil {
		return errors.Join(err, c.sinks.closeExcept(before.sinks))
	}
	if !edited {
		return nil
	}
	if err := c.journal.SetRedaction(ctx, redactionFingerprint(c.cfg)); err != nil {
		return err
	}
	c.attribution.updateRules(c.cfg)
	c.source.Edit(source.Edit{
		Rules: SelectionRules(c.cfg), Load: c.shaper.WrapLoad(c.journal.LoadResource), Shape: c.shaper.WrapAppend,
		Reshaped: policyChanged(before.cfg, c.cfg),
	})
	return nil
}

// replaceSinks stops the sinks of before that are gone or changed, at their current positions, and starts those that are new
// or changed.
func (c *composition) replaceSinks(ctx context.Context, before *composition, install func(*composition)) error {
	before.sinks.drainRemoved(ctx, before.cfg.Delivery.DrainTimeout, c.sinks, c.journal.Newest())
	if err := before.sinks.closeExcept(c.sinks); err != nil {
		c.log.Warn("a removed sink could not be closed in order", "error", err)
	}
	if err := updateJournalSinks(ctx, c.journal, before.cfg.Sinks, c.cfg.Sinks); err != nil {
		return err
	}
	if err := c.sinks.openSinks(c.feed()); err != nil {
		return err
	}
	c.become(phaseRunning)
	install(c)
	c.sinks.startAdded(before.sinks, c.failed.reportError)
	return nil
}

// updateJournalSinks removes the cursors of removed sinks from the journal, and adds new sinks.
func updateJournalSinks(ctx context.Context, j *journal.Journal, before, now []config.Sink) error {
	contains := func(all []config.Sink, name string) bool {
		return slices.ContainsFunc(all, func(s config.Sink) bool { return s.Name == name })
	}
	for _, s := range before {
		if !contains(now, s.Name) {
			if err := j.RemoveSink(ctx, s.Name); err != nil {
				return err
			}
		}
	}
	for _, s := range now {
		if !contains(before, s.Name) {
			if err := j.AddSink(ctx, s.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// matchingRules returns for each rule of now the index of the rule of before with the same effect on changes: an equal rule,
// else one with an equal policy; -1 for none. Each rule of before is used once.
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

// policyChanged returns a function that reports whether changes of a resource are shaped differently under the rules of now.
func policyChanged(before, now *config.Config) func(event.Resource) bool {
	ruleBefore, ruleNow := ruleMatcher(before), ruleMatcher(now)
	return func(r event.Resource) bool {
		i, was := ruleBefore(r)
		j, is := ruleNow(r)
		return was && is &&
			(before.NeedsBefore() != now.NeedsBefore() || !samePolicy(before.Resources[i].Policy, now.Resources[j].Policy))
	}
}
