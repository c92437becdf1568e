package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// warnSuspicious warns of what works and is hardly what was meant.
func (d *decoder) warnSuspicious(c *Config) {
	for i, r := range c.Resources {
		d.warnShadowedSelections(c.Resources, i)
		for _, doubt := range r.Warnings() {
			d.addWarning(fmt.Sprintf("resources[%d].%s", i, doubt.Key), Problem{Message: doubt.Message})
		}
		if slices.Contains(r.Namespaces.Exclude, "*") {
			d.addWarning(fmt.Sprintf("resources[%d].namespaces.exclude", i), Problem{Message: "leaves out every namespace: only objects that have none are taken"})
		}
	}
	d.warnSinkOverlaps(c)
	d.warnUnreachedSinks(c)
	d.warnUnusedKeys(c)
	d.warnJournalBounds(c.Journal)
}

// warnUnusedKeys warns of values that somebody has set, and that mean nothing because what they belong to is off.
func (d *decoder) warnUnusedKeys(c *Config) {
	const intake, bus, lease = "audit.webhook, audit.files or audit.kafka", "state.sink", "election.lease"
	usual := Default()
	named, state, election := c.Audit.Enabled(), c.State.Enabled(), c.Election.Enabled()
	for _, k := range []struct {
		path     string
		on, said bool
		needs    string
	}{
		{"audit.settle", named, c.Audit.Settle != usual.Audit.Settle, intake},
		{"audit.window", named, c.Audit.Window != usual.Audit.Window, intake},
		{"audit.countersEvery", named, c.Audit.CountersEvery != usual.Audit.CountersEvery, intake},
		{"audit.wait", named, c.Audit.Wait != usual.Audit.Wait, intake},
		{"audit.likely", named, c.Audit.Likely, intake},
		{"audit.clockSkew", named, c.Audit.ClockSkew != usual.Audit.ClockSkew, intake},
		{"audit.maxPending", named, c.Audit.MaxPending != usual.Audit.MaxPending, intake},
		{"state.name", state, c.State.Name != usual.State.Name, bus},
		{"election.duration", election, c.Election.Duration != usual.Election.Duration, lease},
	} {
		if k.said && !k.on {
			d.addWarning(k.path, Problem{Message: "means nothing without " + k.needs})
		}
	}
}

// warnJournalBounds warns of a bound that another one keeps from being reached.
func (d *decoder) warnJournalBounds(j Journal) {
	if _, said := d.lines["journal.maxDeadLetters"]; said && j.MaxDeadLetters > j.MaxBytes/2 {
		d.addWarning("journal.maxDeadLetters", Problem{Message: "more than half of journal.maxBytes, so that half is the bound", Found: j.MaxDeadLetters.String(),
			Expected: "at most " + (j.MaxBytes / 2).String()})
	}
}

// warnShadowedSelections warns of objects that a rule leaves and that a later rule seems to take in: a resource belongs to the first
// rule that selects it, and what that leaves is not emitted.
func (d *decoder) warnShadowedSelections(rules []Resource, i int) {
	if !rules[i].IsNarrowed() {
		return
	}
	for j, name := range rules[i].Select {
		for k, later := range rules[i+1:] {
			if at, taken := later.SelectsAll(name); taken && selection.IsWildcard(later.Select[at]) {
				d.addWarning(fmt.Sprintf("resources[%d].select[%d]", i, j), Problem{
					Message: fmt.Sprintf("what this rule leaves of %q is not emitted: resources[%d].select[%d], %q, does not take it, as a resource belongs to the first rule that selects it",
						name, i+1+k, at, later.Select[at]),
					Expected: fmt.Sprintf("%q among the exclude of resources[%d] where that is meant", name, i+1+k),
				})
				break
			}
		}
	}
}

func (d *decoder) warnSinkOverlaps(c *Config) {
	for i, s := range c.Sinks {
		at := fmt.Sprintf("sinks[%d]", i)
		for j, other := range c.Sinks[:i] {
			if place := s.destinationKey(); place != "" && place == other.destinationKey() && len(c.Routes) == 0 {
				d.addWarning(at, Problem{Message: fmt.Sprintf("goes where sinks[%d] goes: every change arrives twice", j), Expected: "one of them"})
			}
		}
		if s.Stdout != nil && s.Stdout.Path != "" && isWithin(resolvePath(s.Stdout.Path), resolvePath(c.Journal.Dir)) {
			d.addWarning(at+".stdout.path", Problem{Message: "lies within journal.dir, which belongs to the journal", Expected: "a file elsewhere"})
		}
	}
}

// destinationKey names what a sink writes to, without credentials; "" for what is checked elsewhere.
func (s Sink) destinationKey() string {
	switch {
	case s.Kafka != nil:
		return "kafka " + strings.Join(slices.Sorted(slices.Values(s.Kafka.Brokers)), ",") + " " + s.Kafka.Topic
	case s.NATS != nil:
		return "nats " + s.NATS.URL + " " + s.NATS.StreamName() + " " + s.NATS.Subject
	case s.Webhook != nil:
		return "webhook " + s.Webhook.URL
	}
	return ""
}

func isWithin(path, dir string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && relative != ".." && !strings.HasPrefix(relative, ".."+string(filepath.Separator))
}

// warnUnreachedSinks warns of sinks that no change can come to.
func (d *decoder) warnUnreachedSinks(c *Config) {
	all := slices.IndexFunc(c.Routes, func(r Route) bool {
		return r.IsUnconditional() && slices.Contains(r.Select, "*") && len(r.Exclude) == 0
	})
	if all < 0 { // what no route matches goes to every sink
		return
	}
	for i, s := range c.Sinks {
		reached := slices.ContainsFunc(c.Routes, func(r Route) bool {
			return slices.ContainsFunc(r.To, func(t Target) bool { return t.Sink == s.Name })
		}) || slices.ContainsFunc(c.Sinks, func(other Sink) bool { return other.DeadLetters.Sink == s.Name })
		if !reached {
			d.addWarning(fmt.Sprintf("sinks[%d]", i), Problem{Message: fmt.Sprintf("gets nothing: routes[%d] takes what is left, and no route names %q", all, s.Name)})
		}
	}
}
