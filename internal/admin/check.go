package admin

import (
	"cmp"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// isActive reports whether this process delivers; a standby does not.
func (s Snapshot) isActive() bool { return s.Replica == nil || s.Replica.Role == RoleActive }

// describeRole returns the role of this process and, for a standby, the active exporter.
func (r *ReplicaStatus) describeRole() string {
	if r.Role != RoleStandby {
		return r.Role
	}
	return r.Role + ", " + cmp.Or(r.Holder, "no exporter") + " is active"
}

// problems returns what is wrong: one status for each fault, those first that make the exporter not ready.
func (s Snapshot) problems() []condition.Status {
	all := condition.Summarize(s.Conditions)
	slices.SortStableFunc(all, func(a, b condition.Status) int { return cmp.Compare(b.Severity, a.Severity) })
	return all
}

// isReady reports whether nothing makes the exporter not ready.
func (s Snapshot) isReady() bool { return worstOf(s.Conditions).Severity != condition.NotReady }

// worstOf returns the first status with the highest severity; a zero Status if there is none.
func worstOf(all []condition.Status) (worst condition.Status) {
	for _, s := range all {
		if s.Severity > worst.Severity {
			worst = s
		}
	}
	return worst
}

// countCodes counts the statuses with one of these codes.
func countCodes(all []condition.Status, codes ...condition.Code) (n int) {
	for _, s := range all {
		if slices.Contains(codes, s.Code) {
			n++
		}
	}
	return n
}
