package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/condition"
)

// troubleLines bounds the lanes of one sink that /readyz names one by one.
const troubleLines = 10

// check is one line of /readyz.
type check struct {
	name     string
	reason   string // why not ready; "" is well
	degraded string // what does not count and must be known
}

// checks lists everything readiness depends on.
func (s Snapshot) checks() []check {
	all := []check{{name: "configuration", degraded: s.Config.Refused}, {name: "journal", reason: cmp.Or(s.Journal.Blocked, s.Journal.DeadLettersFull)}, {name: "discovery", reason: s.Discovery}}
	for _, r := range s.Resources {
		all = append(all, check{name: "resource/" + r.Name, reason: r.NotReady, degraded: r.Degraded})
	}
	for _, k := range s.Sinks {
		all = append(all, check{name: "sink/" + k.Name, reason: k.NotReady, degraded: k.Held})
		for _, caution := range k.Cautions {
			all = append(all, check{name: "sink/" + k.Name, degraded: caution})
		}
		all = append(all, k.laneChecks()...)
	}
	if s.Audit != nil {
		all = append(all, check{name: "audit", degraded: s.Audit.Degraded})
	}
	return all
}

// laneChecks are those of the lanes that fail.
func (s SinkStatus) laneChecks() (all []check) {
	for i, t := range s.Trouble {
		if i == troubleLines {
			rest := fmt.Sprintf("and %d more lanes fail: kubecdc_sink_lane_failing_since_seconds names them", s.LanesBackingOff-i)
			return append(all, check{name: "sink/" + s.Name, degraded: rest})
		}
		degraded := fmt.Sprintf("%s (since %s)", t.Reason, t.Since.UTC().Format(time.RFC3339))
		all = append(all, check{name: "sink/" + s.Name + "/" + t.Lane, degraded: degraded})
	}
	return all
}

// ready says whether no check fails.
func (s Snapshot) ready() bool {
	return !slices.ContainsFunc(s.checks(), func(c check) bool { return c.reason != "" })
}

// One fault may hit every resource. More than alone resources with the same reason, numbers in it apart, are one check, which
// names the first few.
const (
	alone      = 3
	namesShown = 3
)

// complaints are the checks that are not well, those of many resources with the same reason joined.
func (s Snapshot) complaints() []check {
	type trouble struct{ reason, degraded string }
	names := map[trouble][]string{}
	for _, r := range s.Resources {
		t := trouble{condition.Alike(r.NotReady), condition.Alike(r.Degraded)}
		names[t] = append(names[t], r.Name)
	}
	var all []check
	for _, c := range s.checks() {
		t := trouble{condition.Alike(c.reason), condition.Alike(c.degraded)}
		resource, is := strings.CutPrefix(c.name, "resource/")
		switch same := names[t]; {
		case t == (trouble{}):
		case !is || len(same) <= alone:
			all = append(all, c)
		case same[0] == resource:
			all = append(all, c.joined(same, len(s.Resources)))
		}
	}
	return all
}

// joined is the check of all resources that have the same reason as c.
func (c check) joined(names []string, of int) check {
	c.name = "resources"
	for _, reason := range []*string{&c.reason, &c.degraded} {
		if *reason != "" {
			*reason = fmt.Sprintf("%d of %d (%s and %d more): %s",
				len(names), of, strings.Join(names[:namesShown], ", "), len(names)-namesShown, *reason)
		}
	}
	return c
}
