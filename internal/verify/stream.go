package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// RunStream checks what the lanes of topics show by themselves, without a cluster: order, IDs, the frames of snapshots, the
// digests of watermarks, and gaps. The error is that of ctx.
func RunStream(ctx context.Context, o Options, topics []string) (*Result, error) {
	began := time.Now()
	result := &Result{Sink: o.Sink, Cluster: o.Cluster, Resources: []*ScopeResult{}, Notes: o.Notes}
	o.Shape = nil
	var all []*verification
	for _, topic := range topics {
		v := newVerification(&o, topic, nil)
		v.streamOnly = true
		all = append(all, v)
	}
	runEach(all, func(v *verification) {
		if err := v.checkStream(ctx); err != nil {
			v.refuseStream(err)
		}
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, v := range all {
		result.Records += v.read
		for _, s := range v.scopes {
			result.Resources = append(result.Resources, s.result)
		}
	}
	slices.SortFunc(result.Resources, func(a, b *ScopeResult) int { return cmp.Compare(a.Resource, b.Resource) })
	result.combine(OutcomeConsistent)
	result.Took = time.Since(began).Round(time.Millisecond).String()
	return result, nil
}

// addFoundScope adds the scope of a resource that a record is about.
func (v *verification) addFoundScope(key scopeKey) *scope {
	name := event.Resource{Group: key.Group, Resource: key.Resource.Resource}.String()
	if v.Cluster == "" {
		name += " of " + key.Cluster
	}
	s := newScope(key.Cluster, Target{})
	s.key, s.result.Resource = key, name
	s.startPass(v.lanes)
	v.byKey[key], v.scopes = s, append(v.scopes, s)
	return s
}

// refuseStream refuses all scopes that were found; without any, the topic.
func (v *verification) refuseStream(err error) {
	if len(v.scopes) == 0 {
		s := newScope(v.Cluster, Target{})
		s.result.Resource = cmp.Or(v.tail.target, "*")
		v.scopes = append(v.scopes, s)
	}
	v.refuseOpen(err)
}

// checkStream reads the lanes to their ends.
func (v *verification) checkStream(ctx context.Context) error {
	if err := v.tail.open(ctx); err != nil {
		return err
	}
	if err := v.foldLanes(ctx); err != nil {
		return err
	}
	if err := examineSuspects(ctx, v); err != nil {
		return err
	}
	for _, s := range v.scopes {
		v.finishFoundScope(s)
	}
	return nil
}

// finishFoundScope decides the outcome of a scope of which only the stream was read.
func (v *verification) finishFoundScope(s *scope) {
	r := s.result
	r.Objects = v.table.Len(s.key.Resource)
	v.checkFrames(s)
	sortDifferences(r.Differences)
	switch {
	case slices.ContainsFunc(v.tail.lanes, func(l sinks.StoredLane) bool { return l.Replaces }):
		r.Note = "newer records replace older ones here, so digests in between cannot be checked"
	case len(s.passed) == 0:
		r.Note = "there are no watermarks, so nothing shows whether records are missing"
	}
	lost := s.lost
	if lost == "" && len(r.Gaps) > 0 {
		lost = fmt.Sprintf("history was lost in %d gaps, and what happened in them is in no record", len(r.Gaps))
	}
	r.decide(OutcomeConsistent, lost)
	if r.WatermarksWrong > 0 {
		r.Outcome, r.Reason = OutcomeDifferent, ""
	}
}
