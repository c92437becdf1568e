package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Target is a scope of the configuration, and where the sink delivers its changes.
type Target struct {
	Scope  selection.Scope
	Topic  string // "" if all targets share one, such as a stream
	Reason string // why it cannot be verified, with the remedy; "" if it can
}

// Options configure a verification.
type Options struct {
	Sink    string
	Cluster string // its name in records; "" for any, only if the stream alone is checked
	Targets []Target
	Reader  sinks.StoredReader
	Format  format.Format
	Notes   []string // of what is not looked at

	// List reads a scope, see [source.ReadScope]. It is called concurrently, as is Shape.
	List func(ctx context.Context, scope selection.Scope, at string, to source.Reading) (position, newest string, err error)
	// Shape returns the content of an object as the sink emits it; nil if contents are not compared.
	Shape func(scope selection.Scope, o *deltas.Object) ([]byte, error)
	// After has where the lanes of topics ended, see [Ends]: only watermarks behind that count.
	After map[string][]int64
	// AnyAge lets older ones count, with a note, if none comes.
	AnyAge bool
	// Wait bounds the wait for a watermark.
	Wait time.Duration
	// Progress gets a line now and then. It is called concurrently.
	Progress func(line string)
}

// Run compares the sink with the cluster. A resource that cannot be verified is part of the result. The error is that of
// ctx.
func Run(ctx context.Context, o Options) (*Result, error) {
	began := time.Now()
	result := &Result{Sink: o.Sink, Cluster: o.Cluster, Bodies: o.Shape != nil, Resources: []*ScopeResult{}, Notes: o.Notes}
	byTopic := map[string][]*scope{}
	for _, t := range o.Targets {
		s := newScope(o.Cluster, t)
		result.Resources = append(result.Resources, s.result)
		if t.Reason != "" {
			s.refuse(t.Reason)
			continue
		}
		byTopic[t.Topic] = append(byTopic[t.Topic], s)
	}
	var all []*verification
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		all = append(all, newVerification(&o, topic, byTopic[topic]))
	}
	runEach(all, func(v *verification) { v.verifyTopic(ctx) })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, v := range all {
		result.Records += v.read
		for _, s := range v.scopes {
			if s.result.Outcome == OutcomeDifferent {
				result.differing = append(result.differing, newDiffering(s))
			}
		}
	}
	result.combine(OutcomeEqual)
	result.Took = time.Since(began).Round(time.Millisecond).String()
	return result, nil
}

// maxTopics is how many topics are verified at a time. While the API server lists the objects of one, another one is read.
// More would keep more tables in memory.
const maxTopics = 4

// runEach calls do for all verifications, for a few at a time.
func runEach(all []*verification, do func(*verification)) {
	var running errgroup.Group
	running.SetLimit(maxTopics)
	for _, v := range all {
		running.Go(func() error { do(v); return nil })
	}
	_ = running.Wait() // none fails
}

// scope is a scope that is verified.
type scope struct {
	Target
	key    scopeKey
	result *ScopeResult

	barrier *barrier
	listed  map[consumer.Key]version // at the position of the barrier, or at listedAt
	// listedAt is the version of the list if that is not the position of the barrier but one before. What changed after it
	// is not compared.
	listedAt string
	newer    map[consumer.Key]bool // read after listedAt, or only kept in a newer version
	removed  bool                  // a record behind the barrier removes an object that it does not name

	tries    int    // of lists at exact versions
	stops    []bool // by lane: the copy of the barrier has passed
	passed   map[passedMark]string
	suspects map[consumer.Key]bool
	oldest   map[int]string    // by lane: the version that its first record of the scope was read at
	ends     map[string]string // by snapshot: its position
	lost     string            // why the oldest records are not there; "" if they are
}

func newScope(cluster string, t Target) *scope {
	of := t.Scope.Resource
	return &scope{
		Target: t, key: scopeKey{consumer.Resource{Cluster: cluster, Group: of.Group, Resource: of.Resource}, t.Scope.Namespace},
		result:   &ScopeResult{Resource: of.String(), Namespace: t.Scope.Namespace},
		suspects: map[consumer.Key]bool{}, oldest: map[int]string{}, ends: map[string]string{},
	}
}

// refuse ends the verification of the scope without a comparison.
func (s *scope) refuse(reason string) {
	s.result.Outcome, s.result.Reason = OutcomeNotVerified, reason
	s.barrier = nil
}

func (s *scope) isRefused() bool { return s.result.Outcome == OutcomeNotVerified }

// verification verifies the scopes of one topic, or of a stream.
type verification struct {
	*Options
	scopes []*scope
	tail   *tail
	parser *recordParser
	byKey  map[scopeKey]*scope
	table  consumer.Table
	lanes  int
	read   int64 // records
	shown  time.Time

	streamOnly bool // scopes are found in the stream, and lanes are read to their ends
}

func newVerification(o *Options, topic string, scopes []*scope) *verification {
	v := &verification{Options: o, scopes: scopes, byKey: map[scopeKey]*scope{}, shown: time.Now()}
	v.parser = &recordParser{cluster: o.Cluster, format: o.Format, keyed: o.Format.HasRows()}
	v.tail = &tail{reader: o.Reader, parser: v.parser, target: topic, after: o.After[topic], marks: map[scopeKey][][]mark{}}
	for _, s := range scopes {
		v.byKey[s.key] = s
	}
	return v
}

// verifyTopic verifies all scopes of the topic.
func (v *verification) verifyTopic(ctx context.Context) {
	if err := v.tail.open(ctx); err != nil {
		v.refuseOpen(err)
		return
	}
	if err := (&preparation{v}).prepareScopes(ctx); err != nil {
		v.refuseOpen(err)
		return
	}
	if !slices.ContainsFunc(v.scopes, func(s *scope) bool { return !s.isRefused() }) {
		return
	}
	if err := v.foldLanes(ctx); err != nil {
		v.refuseOpen(err)
		return
	}
	for _, s := range v.scopes {
		if !s.isRefused() {
			v.collectSuspects(s)
		}
	}
	if err := examineSuspects(ctx, v); err != nil {
		v.refuseOpen(err)
		return
	}
	for _, s := range v.scopes {
		if !s.isRefused() {
			v.finishScope(s)
		}
	}
}

// refuseOpen ends the verification of all scopes that are not refused yet.
func (v *verification) refuseOpen(err error) {
	for _, s := range v.scopes {
		if !s.isRefused() {
			s.refuse(err.Error())
		}
	}
}

// report reports progress, at most once a second.
func (v *verification) report(format string, args ...any) {
	if v.Progress != nil && time.Since(v.shown) >= time.Second {
		v.shown = time.Now()
		v.Progress(fmt.Sprintf(format, args...))
	}
}

// ofTopic names the topic in a line of progress, if there are several.
func (v *verification) ofTopic() string {
	if v.tail.target == "" {
		return ""
	}
	return " of " + v.tail.target
}

// scopeOf returns the scope that a record belongs to; nil if it is not verified.
func (v *verification) scopeOf(r *record) *scope {
	key := scopeKey{consumer.Resource{Cluster: r.Cluster, Group: r.Group, Resource: r.Resource}, ""}
	s := v.byKey[key]
	switch {
	case s == nil && v.streamOnly:
		s = v.addFoundScope(key)
	case s == nil:
		key.namespace = r.Namespace
		s = v.byKey[key]
	}
	if s == nil || s.isRefused() || !v.streamOnly && s.barrier == nil {
		return nil
	}
	return s
}
