package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// suspect warns of what works and is hardly what was meant.
func (d *decoder) suspect(c *Config) {
	for i, r := range c.Resources {
		d.suspectRest(c.Resources, i)
		for _, doubt := range r.Doubts() {
			d.warn(fmt.Sprintf("resources[%d].%s", i, doubt.Key), Problem{Message: doubt.Message})
		}
		if slices.Contains(r.Namespaces.Exclude, "*") {
			d.warn(fmt.Sprintf("resources[%d].namespaces.exclude", i), Problem{Message: "leaves out every namespace: only objects that have none are taken"})
		}
	}
	d.suspectSinks(c)
	d.suspectRoutes(c)
	d.suspectIdle(c)
	d.suspectJournal(c.Journal)
}

// suspectIdle warns of values that somebody has set, and that mean nothing because what they belong to is off.
func (d *decoder) suspectIdle(c *Config) {
	const intake, bus, lease = "audit.webhook, audit.files or audit.kafka", "state.sink", "election.lease"
	usual := Default()
	named, state, election := c.Audit.On(), c.State.On(), c.Election.On()
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
			d.warn(k.path, Problem{Message: "means nothing without " + k.needs})
		}
	}
}

// suspectJournal warns of a bound that another one keeps from being reached.
func (d *decoder) suspectJournal(j Journal) {
	if _, said := d.lines["journal.maxDeadLetters"]; said && j.MaxDeadLetters > j.MaxBytes/2 {
		d.warn("journal.maxDeadLetters", Problem{Message: "more than half of journal.maxBytes, so that half is the bound", Found: j.MaxDeadLetters.String(),
			Expected: "at most " + (j.MaxBytes / 2).String()})
	}
}

// suspectRest warns of objects that a rule leaves and that a later rule seems to take in: a resource belongs to the first
// rule that selects it, and what that leaves is not emitted.
func (d *decoder) suspectRest(rules []Resource, i int) {
	if !rules[i].Narrows() {
		return
	}
	for j, name := range rules[i].Select {
		for k, later := range rules[i+1:] {
			if at, taken := later.Takes(name); taken && selection.Wildcard(later.Select[at]) {
				d.warn(fmt.Sprintf("resources[%d].select[%d]", i, j), Problem{
					Message: fmt.Sprintf("what this rule leaves of %q is not emitted: resources[%d].select[%d], %q, does not take it, as a resource belongs to the first rule that selects it",
						name, i+1+k, at, later.Select[at]),
					Expected: fmt.Sprintf("%q among the exclude of resources[%d] where that is meant", name, i+1+k),
				})
				break
			}
		}
	}
}

func (d *decoder) suspectSinks(c *Config) {
	for i, s := range c.Sinks {
		at := fmt.Sprintf("sinks[%d]", i)
		for j, other := range c.Sinks[:i] {
			if place := s.place(); place != "" && place == other.place() && len(c.Routes) == 0 {
				d.warn(at, Problem{Message: fmt.Sprintf("goes where sinks[%d] goes: every change arrives twice", j), Expected: "one of them"})
			}
		}
		if s.Stdout != nil && s.Stdout.Path != "" && within(resolved(s.Stdout.Path), resolved(c.Journal.Dir)) {
			d.warn(at+".stdout.path", Problem{Message: "lies within journal.dir, which belongs to the journal", Expected: "a file elsewhere"})
		}
	}
}

// place names what a sink writes to, without credentials; "" for what is checked elsewhere.
func (s Sink) place() string {
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

func within(path, dir string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && relative != ".." && !strings.HasPrefix(relative, ".."+string(filepath.Separator))
}

// suspectRoutes warns of sinks that no change can come to.
func (d *decoder) suspectRoutes(c *Config) {
	all := slices.IndexFunc(c.Routes, func(r Route) bool { return r.TakesAll() && slices.Contains(r.Select, "*") && len(r.Exclude) == 0 })
	if all < 0 { // what no route matches goes to every sink
		return
	}
	for i, s := range c.Sinks {
		reached := slices.ContainsFunc(c.Routes, func(r Route) bool {
			return slices.ContainsFunc(r.To, func(t Target) bool { return t.Sink == s.Name })
		}) || slices.ContainsFunc(c.Sinks, func(other Sink) bool { return other.DeadLetters.Sink == s.Name })
		if !reached {
			d.warn(fmt.Sprintf("sinks[%d]", i), Problem{Message: fmt.Sprintf("gets nothing: routes[%d] takes what is left, and no route names %q", all, s.Name)})
		}
	}
}
