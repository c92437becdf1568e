package verify

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// finishScope decides the outcome of a scope that was compared.
func (v *verification) finishScope(s *scope) {
	r := s.result
	b := s.barrier
	r.Watermark = &WatermarkResult{Position: b.position, Epoch: b.Epoch, Sequence: b.Sequence, At: b.time, Age: max(0, time.Since(b.time)).Round(100 * time.Millisecond).String()}
	if after := v.After[v.tail.target]; v.AnyAge && len(after) > 0 && b.at < after[0] && r.Note == "" {
		r.Note = "no watermark came that was asked for: what was written behind this one is not seen"
	}
	if s.listedAt == "" && b.Algorithm == event.DigestAlgorithm {
		count, digest := digestOf(s.listed)
		r.WatermarkDiffers = count != b.Count || digest != b.Digest
	}
	v.checkFrames(s)
	sortDifferences(r.Differences)
	r.decide(OutcomeEqual, s.lost)
}

// digestOf returns count and digest of objects as a watermark has them.
func digestOf(objects map[consumer.Key]version) (int, string) {
	var d event.Digest
	for key, of := range objects {
		d.Add(key.Namespace, key.Name, of.uid, of.resourceVersion)
	}
	return len(objects), d.String()
}

// checkFrames counts the snapshots and watermarks of the stream with another digest, and finds out whether the oldest
// records of the scope are gone.
func (v *verification) checkFrames(s *scope) {
	covered := false // by a snapshot that the lanes reach back to
	whole := !slices.ContainsFunc(v.tail.lanes, func(l sinks.StoredLane) bool { return l.Replaces || l.Truncated })
	for _, f := range v.table.Snapshots() {
		switch {
		case f.Resource != s.key.Resource || f.Namespace != "" && f.Namespace != s.key.namespace && !v.streamOnly:
		case f.Verified:
			s.result.Snapshots++
			covered = covered || v.reachBackTo(s, s.ends[f.ID])
		case f.Ended && whole:
			s.result.SnapshotsWrong++
		}
	}
	for _, w := range v.table.Watermarks() {
		if whole && w.Resource == s.key.Resource && (w.Namespace == s.key.namespace || v.streamOnly) {
			s.result.WatermarksWrong += w.Different
		}
	}
	if i := slices.IndexFunc(v.tail.lanes, func(l sinks.StoredLane) bool { return l.Truncated }); i >= 0 && !covered {
		l := v.tail.lanes[i]
		s.lost = fmt.Sprintf("the records of %s before position %d are gone, and no whole snapshot of the resource is behind them, so objects "+
			"that did not change since may be missing; use compaction instead of a limit by age or size, or `resync` in the rule",
			describeLane(l), l.First)
	}
}

// reachBackTo reports whether all lanes have the records of a scope from a snapshot on: changes after it are in no lane
// before a record that was read at its position or earlier.
func (v *verification) reachBackTo(s *scope, position string) bool {
	return !slices.ContainsFunc(v.tail.lanes, func(l sinks.StoredLane) bool {
		oldest, any := s.oldest[l.Index]
		return l.Truncated && (!any || isAfter(oldest, position))
	})
}

// describeLane names a lane.
func describeLane(l sinks.StoredLane) string {
	if l.Count > 1 {
		return fmt.Sprintf("%s/%d", l.Target, l.Index)
	}
	return l.Target
}

// sortDifferences sorts by object and kind.
func sortDifferences(all []Difference) {
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Record, b.Record))
	})
}
