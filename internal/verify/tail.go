package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// firstWindow is how many records are read from the end of each lane to find watermarks; windowGrowth is how much larger
	// each further window is.
	firstWindow, windowGrowth = 2048, 8
)

// scopeKey identifies a resource, or one namespace of it, in records.
type scopeKey struct {
	consumer.Resource
	namespace string
}

// tail finds the watermarks at the ends of the lanes of one target.
type tail struct {
	reader sinks.StoredReader
	parser *recordParser
	target string
	after  []int64 // by lane: watermarks before this position do not count

	lanes   []sinks.StoredLane
	from    []int64 // the first position that was searched, by lane
	through []int64 // the position after the last one
	marks   map[scopeKey][][]mark
}

// Ends returns where the lanes of a topic end.
func Ends(ctx context.Context, reader sinks.StoredReader, topic string) ([]int64, error) {
	lanes, err := reader.StoredLanes(ctx, topic)
	ends := make([]int64, len(lanes))
	for i, l := range lanes {
		ends[i] = l.End
	}
	return ends, err
}

// beginOf returns the first position of a lane that is searched for watermarks.
func (t *tail) beginOf(lane int) int64 {
	first := t.lanes[lane].First
	if lane < len(t.after) {
		return max(first, t.after[lane])
	}
	return first
}

// open finds the lanes of the target, and searches nothing yet.
func (t *tail) open(ctx context.Context) (err error) {
	if t.lanes, err = t.reader.StoredLanes(ctx, t.target); err != nil {
		return err
	}
	t.from, t.through = make([]int64, len(t.lanes)), make([]int64, len(t.lanes))
	for i, l := range t.lanes {
		t.from[i], t.through[i] = l.End, l.End
		t.parser.keyed = t.parser.keyed || l.Replaces
	}
	return nil
}

// searchBack searches a window before what was searched. more is false if there is nothing before.
func (t *tail) searchBack(ctx context.Context, records int64) (more bool, err error) {
	spans := make([]sinks.StoredSpan, len(t.lanes))
	for i, l := range t.lanes {
		first := min(t.beginOf(i), t.from[i])
		spans[i] = sinks.StoredSpan{StoredLane: l, From: max(first, t.from[i]-records), To: t.from[i]}
		t.from[i] = spans[i].From
		more = more || t.from[i] > first
	}
	found, err := t.searchSpans(ctx, spans)
	if err != nil {
		return false, err
	}
	for scope, lanes := range found { // what is found is older
		t.addMarks(scope, lanes, func(old, add []mark) []mark { return append(add, old...) })
	}
	return more, nil
}

// searchForward searches what has been written since. It reports whether the lanes are others than before: then everything
// begins again.
func (t *tail) searchForward(ctx context.Context) (changed bool, err error) {
	now, err := t.reader.StoredLanes(ctx, t.target)
	if err != nil {
		return false, err
	}
	if len(now) != len(t.lanes) {
		t.marks = map[scopeKey][][]mark{}
		return true, t.open(ctx)
	}
	spans := make([]sinks.StoredSpan, len(now))
	for i, l := range now {
		spans[i] = sinks.StoredSpan{StoredLane: l, From: t.through[i], To: l.End}
		t.through[i] = max(l.End, t.through[i])
	}
	t.lanes = now
	found, err := t.searchSpans(ctx, spans)
	if err != nil {
		return false, err
	}
	for scope, lanes := range found {
		t.addMarks(scope, lanes, func(old, add []mark) []mark { return append(old, add...) })
	}
	return false, nil
}

func (t *tail) addMarks(scope scopeKey, found [][]mark, join func(old, add []mark) []mark) {
	all := t.marks[scope]
	if all == nil {
		all = make([][]mark, len(t.lanes))
		t.marks[scope] = all
	}
	for i := range found {
		all[i] = join(all[i], found[i])
	}
}

// searchSpans returns the watermarks in spans, by lane.
func (t *tail) searchSpans(ctx context.Context, spans []sinks.StoredSpan) (map[scopeKey][][]mark, error) {
	found := map[scopeKey][][]mark{}
	err := t.reader.ReadStored(ctx, spans, func(stored sinks.StoredRecord) error {
		r, ok := t.parser.parse(stored)
		if !ok || r.Watermark == nil {
			return nil
		}
		scope := scopeKey{consumer.Resource{Cluster: r.Cluster, Group: r.Group, Resource: r.Resource}, r.Namespace}
		if found[scope] == nil {
			found[scope] = make([][]mark, len(spans))
		}
		found[scope][stored.Lane] = append(found[scope][stored.Lane], mark{
			Watermark: *r.Watermark, position: r.ResourceVersion, at: stored.Position, time: r.ObservedAt,
		})
		return nil
	})
	return found, err
}

// barrier is a watermark that is in every lane of a scope: what a consumer has up to it is the state at its position.
type barrier struct {
	mark
	stops []int64 // the position after its first copy, by lane
}

// newestBarrier returns the newest watermark of a scope for which wanted is true and that every lane has; nil if there is
// none. newer has a watermark that not all lanes have, or not of the wanted kind: a reason.
func (t *tail) newestBarrier(scope scopeKey, wanted func(*mark) bool) *barrier {
	lanes := t.marks[scope]
	if len(lanes) == 0 {
		return nil
	}
	for i := range slices.Backward(lanes[0]) {
		first := &lanes[0][i]
		if first.Lanes != len(t.lanes) || first.Lane != 0 || !wanted(first) {
			continue
		}
		if b := t.completeBarrier(lanes, first); b != nil {
			return b
		}
	}
	return nil
}

// completeBarrier returns the barrier of a watermark in the first lane, if every other lane has a copy.
func (t *tail) completeBarrier(lanes [][]mark, first *mark) *barrier {
	b := &barrier{mark: *first, stops: make([]int64, len(lanes))}
	for i, all := range lanes {
		found := slices.IndexFunc(all, func(m mark) bool {
			return m.Epoch == first.Epoch && m.Sequence == first.Sequence && m.Lanes == first.Lanes && m.Lane == i
		})
		if found < 0 {
			return nil
		}
		b.stops[i] = all[found].at + 1
	}
	return b
}

// newestMark returns the newest watermark of a scope in any lane; nil if there is none.
func (t *tail) newestMark(scope scopeKey) *mark {
	var newest *mark
	for _, lane := range t.marks[scope] {
		if n := len(lane); n > 0 && (newest == nil || lane[n-1].time.After(newest.time)) {
			newest = &lane[n-1]
		}
	}
	return newest
}

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
