package stamp

import (
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Verdict is what is known of the policy at the time of a write.
type Verdict uint8

// The verdicts.
const (
	NotKnown   Verdict = iota // not checked up to that version yet
	NotInForce                // no proof that the policy was in force at every API server
	InForce
)

// interval is a period in which the policy was in force, as versions: after since, up to until.
type interval struct {
	since, until string
	rules        []resourceRule
}

// Proof is what a [Guard] has found out so far. It is immutable.
type Proof struct {
	intervals []interval
	unproven  map[string]string // groups, see unprovenGroups
	checked   string            // newest version that is known about
}

// Judge returns whether the policy was in force for a write of an object that made this version.
func (p *Proof) Judge(resource event.Resource, version string) Verdict {
	if p.checked == "" {
		return NotKnown
	}
	if _, unproven := p.unproven[resource.Group]; unproven || !resourceversion.IsOrdered(version) {
		return NotInForce
	}
	if isNewer(version, p.checked) {
		return NotKnown
	}
	for _, i := range p.intervals {
		if isNewer(version, i.since) && !isNewer(version, i.until) && covers(i.rules, resource) {
			return InForce
		}
	}
	return NotInForce
}

func covers(rules []resourceRule, resource event.Resource) bool {
	if WhyUnstamped(resource) != "" {
		return false
	}
	for _, r := range rules {
		if r.coversAll(resource) {
			return true
		}
	}
	return false
}

// isNewer reports whether a is newer than b. Versions of the lists that a proof consists of are ordered.
func isNewer(a, b string) bool {
	order, _ := resourceversion.Compare(a, b)
	return order > 0
}

func olderVersion(a, b string) string {
	if isNewer(a, b) {
		return b
	}
	return a
}
