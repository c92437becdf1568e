package shape

import (
	"context"
	"fmt"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Bodies stores the last emitted states of objects. They are written with the observations that carry them.
type Bodies interface {
	// Body returns the newest appended body of an object; false if there is none.
	Body(resource, key string) (event.Body, bool, error)
	// BodyResources returns the names of all resources that have bodies.
	BodyResources() []string
	// DropBodies deletes all bodies of a resource.
	DropBodies(ctx context.Context, resource string) error
}

// Options configures a Shaper, in addition to its policies.
type Options struct {
	// Key is the key of hashes, required if a rule has redact: hmac. The key that encrypts summaries is derived from it.
	Key []byte
	// JournalSecret is used instead of Key to encrypt summaries if there is no Key.
	JournalSecret []byte
	// RuleOf returns the index of the rule that owns a resource, in whatever version; false if there is none. If nil, the
	// first rule owns all.
	RuleOf func(event.Resource) (rule int, selected bool)
	// MetadataOnly has the rules of whose objects only the metadata is read, by index; nil for none.
	MetadataOnly []bool
	// AlwaysBefore makes every update carry the state before it, regardless of its policy.
	AlwaysBefore bool
	// Bodies is required.
	Bodies Bodies
}

// Shaper shapes the changes of all rules. Safe for concurrent use.
type Shaper struct {
	rules  []*rule
	ruleOf func(event.Resource) (int, bool)
	strict *rule // for resources that no rule selects any more
	seal   *summarySeal
	memory *copyMemory
	bodies Bodies

	mu    sync.Mutex
	flags map[string]*objectFlags // by resource name
}

// New returns a shaper for the policies of all rules, in order. The policies must be valid.
func New(policies []Policy, options Options) (*Shaper, error) {
	s := &Shaper{bodies: options.Bodies, ruleOf: options.RuleOf, flags: map[string]*objectFlags{}, memory: newCopyMemory()}
	if s.ruleOf == nil {
		s.ruleOf = func(event.Resource) (int, bool) { return 0, len(policies) > 0 }
	}
	var err error
	if s.seal, err = newSeal(options.Key, options.JournalSecret); err != nil {
		return nil, err
	}
	var strict Policy // the default redaction, with the paths of all policies
	for i, p := range policies {
		strict.RedactPaths = append(strict.RedactPaths, p.RedactPaths...)
		compiled, err := compileRule(p, options)
		if err != nil {
			return nil, fmt.Errorf("resources[%d].%w", i, err)
		}
		compiled.metadataOnly = i < len(options.MetadataOnly) && options.MetadataOnly[i]
		if s.rules = append(s.rules, compiled); compiled.redactor != nil {
			compiled.redactor.memory = s.memory
		}
	}
	if s.strict, err = compileRule(strict, Options{}); err == nil {
		s.strict.redactor.memory = s.memory
	}
	return s, err
}

// WrapAppend returns an AppendFunc for scopes of the rule with this index; it shapes observations and passes them to to. It
// modifies the changes in place, so the caller must not have shared them. It fails if to fails or a body cannot be read.
func (s *Shaper) WrapAppend(index int, to event.AppendFunc) event.AppendFunc {
	r := s.rules[index]
	first := true
	return func(ctx context.Context, o event.Observation) error {
		if first && !r.keepsBodies { // an earlier configuration may have stored bodies
			if err := s.dropUnusedBodies(ctx, o.Resource.String()); err != nil {
				return err
			}
		}
		first = false
		of := s.flagsOf(o.Resource.String())
		var err error
		if r.keepsBodies {
			err = r.shapeWithBodies(&o, of, s.bodies)
		} else {
			r.shapeChanges(&o, of)
			o.Bodies = nil
		}
		if err != nil {
			return err
		}
		s.sealKnown(r, &o, of)
		return to(ctx, o)
	}
}

// dropUnusedBodies deletes the bodies of a resource that no longer needs them.
func (s *Shaper) dropUnusedBodies(ctx context.Context, resource string) error {
	for _, name := range s.bodies.BodyResources() {
		if name == resource {
			return s.bodies.DropBodies(ctx, resource)
		}
	}
	return nil
}

// Stats counts decisions of one rule since the start of the process.
type Stats struct {
	Name     string            `label:"rule"` // its place in the configuration: "resources[0]"
	Dropped  map[string]uint64 `metric:"kubecdc_rule_dropped_total" by:"reason" help:"Changes that a rule does not emit, by reason: filter, or unchanged (onlyIfChanged, ignoreChanges)."`
	Withheld uint64            `metric:"kubecdc_rule_withheld_total" help:"Changes that could not be redacted or shaped; they become dead letters without bodies."`
	Failed   uint64            `metric:"kubecdc_rule_filter_errors_total" help:"Evaluations of the rule's filter that failed or were cut off; their changes were emitted."`
	Failure  string            // the last error; "" for none
}

// Stats returns the counts of all rules, in order.
func (s *Shaper) Stats() []Stats {
	all := make([]Stats, len(s.rules))
	for i, r := range s.rules {
		c := &r.counters
		failed, failure := c.failures.lastFailure()
		all[i] = Stats{fmt.Sprintf("resources[%d]", i), map[string]uint64{"filter": c.filtered.Load(), "unchanged": c.unchanged.Load()}, c.withheld.Load(), failed, failure}
	}
	return all
}
