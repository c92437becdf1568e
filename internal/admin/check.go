package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// maxLaneLines bounds the lanes of one sink that /readyz names one by one.
const maxLaneLines = 10

// check is one line of /readyz.
type check struct {
	name     string
	reason   string // why not ready; "" is well
	degraded string // what does not count and must be known
	detail   string // what follows the "ok" of a check that is well
}

// isActive reports whether this process delivers; a standby does not.
func (s Snapshot) isActive() bool { return s.Replica == nil || s.Replica.Role == RoleActive }

// roleCheck is the line with the role of this process.
func (r *ReplicaStatus) roleCheck() check {
	return check{name: "replica", reason: r.NotReady, degraded: r.Degraded, detail: ": " + r.describeRole()}
}

// describeRole returns the role of this process and, for a standby, the active exporter.
func (r *ReplicaStatus) describeRole() string {
	if r.Role != RoleStandby {
		return r.Role
	}
	return r.Role + ", " + cmp.Or(r.Holder, "no exporter") + " is active"
}

// allChecks lists everything readiness depends on.
func (s Snapshot) allChecks() []check {
	all := []check{{name: "configuration", degraded: s.Config.Refused}}
	if s.Replica != nil {
		all = append(all, s.Replica.roleCheck())
	}
	if !s.isActive() { // there is nothing else yet
		return all
	}
	all = append(all, s.Journal.journalCheck(), check{name: "cluster", degraded: s.Cluster.Unchecked},
		check{name: "clock", degraded: s.Cluster.describeClockSkew()}, check{name: "discovery", reason: s.Discovery})
	all = append(all, s.namespaceChecks()...)
	for _, r := range s.Resources {
		all = append(all, check{name: "resource/" + r.Name, reason: r.NotReady, degraded: r.Degraded})
	}
	for _, k := range s.Sinks {
		all = append(all, check{name: "sink/" + k.Name, reason: k.NotReady, degraded: k.Held})
		if k.DeadLettersKept > 0 {
			all = append(all, check{name: "sink/" + k.Name, degraded: k.describeDeadLetters()})
		}
		for _, caution := range k.Warnings {
			all = append(all, check{name: "sink/" + k.Name, degraded: caution})
		}
		all = append(all, k.laneChecks()...)
	}
	if s.Audit != nil {
		all = append(all, check{name: "audit", degraded: s.Audit.Degraded})
	}
	return all
}

// journalCheck is the journal's.
func (j JournalStatus) journalCheck() check {
	c := check{name: "journal", reason: cmp.Or(j.Blocked, j.DeadLettersFull)}
	if j.Recovered {
		c.degraded = "the stored journal was broken and was set aside at the start, so the stream begins with a gap: " +
			"look at the disk, and at store.broken-… in the journal's directory"
	}
	return c
}

// maxClockSkew is what a clock may be off. Below that nothing depends on it but the times that changes carry.
const maxClockSkew = 30 * time.Second

// describeClockSkew reports how far the clocks of this machine and of the API server are apart; "" within maxClockSkew.
func (c ClusterStatus) describeClockSkew() string {
	off, which := c.ClockSkew, "ahead of"
	if off < 0 {
		off, which = -off, "behind"
	}
	if off < maxClockSkew {
		return ""
	}
	return fmt.Sprintf("this machine's clock is %v %s the API server's: set it, certificates, tokens and the times in changes depend on it",
		off.Round(time.Second), which)
}

// namespaceChecks returns the checks of the namespaces that rules name: one line for all that do not exist, and one for all
// that this account is not allowed to get.
func (s Snapshot) namespaceChecks() (all []check) {
	var missing, unknown []string
	for _, n := range s.Namespaces {
		if n.Missing {
			missing = append(missing, n.Name)
		}
		if n.Unknown != "" {
			unknown = append(unknown, n.Name)
		}
	}
	if len(missing) > 0 {
		all = append(all, check{name: "namespaces", degraded: joinFirstNames(missing) + ": named by a rule, and there is no such namespace; " +
			"create it (it is watched from then on), or correct namespaces.include"})
	}
	if len(unknown) > 0 {
		all = append(all, check{name: "namespaces", degraded: joinFirstNames(unknown) + ": named by a rule, and this account may not know whether there is " +
			"such a namespace; `exporter rbac` prints the right, get on this namespace alone"})
	}
	return all
}

// joinFirstNames names the first few of many.
func joinFirstNames(names []string) string {
	if len(names) <= namesShown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namesShown], ", "), len(names)-namesShown)
}

// describeDeadLetters counts the changes that the destination permanently rejected; the journal keeps them.
func (s SinkStatus) describeDeadLetters() string {
	what := "1 change was permanently rejected and is kept as a dead letter"
	if s.DeadLettersKept > 1 {
		what = fmt.Sprintf("%d changes were permanently rejected and are kept as dead letters", s.DeadLettersKept)
	}
	return fmt.Sprintf(`%s: "exporter deadletter list --sink %s" has the reasons`, what, s.Name)
}

// laneChecks are those of the lanes that fail.
func (s SinkStatus) laneChecks() (all []check) {
	for i, t := range s.Trouble {
		if i == maxLaneLines {
			rest := fmt.Sprintf("and %d more lanes fail: kubecdc_sink_lane_failing_since_seconds names them", s.LanesBackingOff-i)
			return append(all, check{name: "sink/" + s.Name, degraded: rest})
		}
		degraded := fmt.Sprintf("%s (since %s)", t.Reason, t.Since.UTC().Format(time.RFC3339))
		all = append(all, check{name: "sink/" + s.Name + "/" + t.Lane, degraded: degraded})
	}
	return all
}

// isReady reports whether no check fails.
func (s Snapshot) isReady() bool {
	return !slices.ContainsFunc(s.allChecks(), func(c check) bool { return c.reason != "" })
}

// One fault may hit every resource. More than alone resources with the same reason, numbers in it apart, are one check,
// which names the first few.
const (
	maxSeparateLines = 3
	namesShown       = 3
)

// failedChecks are the checks that are not well, those of many resources with the same reason joined.
func (s Snapshot) failedChecks() []check {
	type trouble struct{ reason, degraded string }
	names := map[trouble][]string{}
	for _, r := range s.Resources {
		t := trouble{condition.MaskNumbers(r.NotReady), condition.MaskNumbers(r.Degraded)}
		names[t] = append(names[t], r.Name)
	}
	var all []check
	for _, c := range s.allChecks() {
		t := trouble{condition.MaskNumbers(c.reason), condition.MaskNumbers(c.degraded)}
		resource, is := strings.CutPrefix(c.name, "resource/")
		switch same := names[t]; {
		case t == (trouble{}):
		case !is || len(same) <= maxSeparateLines:
			all = append(all, c)
		case same[0] == resource:
			all = append(all, c.mergedFor(same, len(s.Resources)))
		}
	}
	return all
}

// mergedFor is the check of all resources that have the same reason as c.
func (c check) mergedFor(names []string, of int) check {
	c.name = "resources"
	for _, reason := range []*string{&c.reason, &c.degraded} {
		if *reason != "" {
			*reason = fmt.Sprintf("%d of %d (%s): %s", len(names), of, joinFirstNames(names), *reason)
		}
	}
	return c
}
