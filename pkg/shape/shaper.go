package shape

import (
	"context"
	"fmt"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
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
	// RuleOf returns the index of the rule that selects a resource; false if there is none. If nil, the first rule selects
	// all.
	RuleOf func(event.Resource) (rule int, selected bool)
	// AlwaysBefore makes every update carry the state before it, regardless of its policy.
	AlwaysBefore bool
	// Bodies is required.
	Bodies Bodies
}

// Shaper shapes the changes of all rules. Safe for concurrent use.
type Shaper struct {
	rules  []*rule
	ruleOf func(event.Resource) (int, bool)
	strict *redactor // for resources that no rule selects any more
	seal   *summarySeal
	bodies Bodies

	mu    sync.Mutex
	stale map[string]*staleObjects // by resource name
}

// New returns a shaper for the policies of all rules, in order. The policies must be valid.
func New(policies []Policy, options Options) (*Shaper, error) {
	s := &Shaper{bodies: options.Bodies, ruleOf: options.RuleOf, stale: map[string]*staleObjects{}}
	if s.ruleOf == nil {
		s.ruleOf = func(event.Resource) (int, bool) { return 0, len(policies) > 0 }
	}
	var err error
	if s.seal, err = newSeal(options.Key, options.JournalSecret); err != nil {
		return nil, err
	}
	if s.strict, err = newStrictRedactor(policies); err != nil {
		return nil, err
	}
	for i, p := range policies {
		compiled, err := compileRule(p, options)
		if err != nil {
			return nil, fmt.Errorf("resources[%d].%w", i, err)
		}
		s.rules = append(s.rules, compiled)
	}
	return s, nil
}

// InheritCounters continues the counters of another shaper. same maps each rule to the index of the same rule in before, -1
// for none. Both shapers must have the same key and options. Call it before any change is shaped.
func (s *Shaper) InheritCounters(before *Shaper, same []int) {
	for i, j := range same {
		if j >= 0 {
			s.rules[i] = before.rules[j]
		}
	}
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
		older := s.staleOf(o.Resource.String())
		var err error
		if r.keepsBodies {
			err = r.shapeWithBodies(&o, older, s.bodies)
		} else {
			r.shapeChanges(&o, older)
			o.Bodies = nil
		}
		if err != nil {
			return err
		}
		s.sealKnown(r, &o, older)
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

// shapeChanges shapes the changes of a scope without stored bodies.
func (r *rule) shapeChanges(o *event.Observation, older *staleObjects) {
	kept := o.Changes[:0]
	for _, c := range o.Changes {
		if _, keep := r.shapeChange(c, nil); keep {
			older.markRedactionChange(c)
			kept = append(kept, c)
		}
	}
	o.Changes = kept
}

// shapeWithBodies shapes the changes of an observation and stores the newest state of each object.
func (r *rule) shapeWithBodies(o *event.Observation, older *staleObjects, bodies Bodies) error {
	r.redactBodies(o, older)
	kept := o.Changes[:0]
	newest := map[string]*event.Body{} // states within this observation; nil for a deleted object
	for _, c := range o.Changes {
		if c.Type.IsControl() {
			kept = append(kept, c)
			continue
		}
		key := objectKey(c)
		last, known := newest[key]
		if !known {
			body, ok, err := bodies.Body(o.Resource.String(), key)
			if err != nil {
				return err
			}
			if ok {
				last = &body
			}
		}
		var before []byte
		if last != nil && last.UID == c.UID && len(last.Raw) > 0 && !older.hasStaleBody(key) {
			before = last.Raw // otherwise the redaction alone may be different
		}
		state, keep := r.shapeChange(c, before)
		newest[key] = nil
		if c.Type != event.Deleted { // a withheld change stores an empty body, because the stored state is outdated
			newest[key] = &event.Body{Key: key, UID: c.UID, ResourceVersion: c.ResourceVersion, Raw: state}
		}
		if keep {
			older.markRedactionChange(c)
			kept = append(kept, c)
		}
	}
	o.Changes = kept
	for _, body := range newest {
		if body != nil {
			o.Bodies = append(o.Bodies, *body)
		}
	}
	return nil
}

// redactBodies redacts the bodies of an observation. Bodies that cannot be redacted are removed.
func (r *rule) redactBodies(o *event.Observation, older *staleObjects) {
	kept := o.Bodies[:0]
	for _, b := range o.Bodies {
		if r.redactor != nil {
			of := subject{resource: o.Resource, identity: identityOf(&event.Change{Resource: o.Resource, UID: b.UID, Name: b.Key})}
			var err error
			if b.Raw, _, err = r.redactor.redactBody(b.Raw, of); err != nil {
				continue
			}
		}
		older.markBodyCurrent(b.Key)
		kept = append(kept, b)
	}
	o.Bodies = kept
}

// objectKey returns the key of the object, as in event.Known.
func objectKey(c *event.Change) string {
	if c.Namespace == "" {
		return c.Name
	}
	return c.Namespace + "/" + c.Name
}

// shapeChange shapes one change. last is the previous state of the object, if known. It returns the redacted new state, also
// for changes that are not emitted, and whether the change is emitted.
func (r *rule) shapeChange(c *event.Change, last []byte) (state []byte, keep bool) {
	if r.passesUnchanged || c.Type.IsControl() {
		return nil, true
	}
	hidden, err := r.redactChange(c, &last)
	if err != nil {
		r.withholdChange(c, err)
		return nil, true
	}
	state = c.After
	if c.Type == event.Deleted && c.Before == nil {
		c.Before = last
	}
	if r.isUnchanged(c, last, hidden) {
		r.counters.unchanged.Add(1)
		return state, false
	}
	if !r.matchesFilter(c, last) {
		r.counters.filtered.Add(1)
		return state, false
	}
	if err := r.applyFields(c, last); err != nil {
		r.withholdChange(c, err)
	}
	return state, true
}

// withholdChange removes everything except the identity from a change, and counts it.
func (r *rule) withholdChange(c *event.Change, err error) {
	r.counters.withheld.Add(1)
	withholdBodies(c, err)
}

func withholdBodies(c *event.Change, err error) {
	c.Before, c.After, c.Changed, c.Patch = nil, nil, nil, nil
	c.Withheld = fmt.Sprintf("bodies withheld because the change cannot be shaped: %v", err)
}

// redactChange redacts the bodies of a change and the previous state. The previous state was redacted when it was stored,
// but perhaps under another configuration.
func (r *rule) redactChange(c *event.Change, last *[]byte) (hidden objectParts, err error) {
	if r.redactor == nil {
		return 0, nil
	}
	of := subject{resource: c.Resource, identity: identityOf(c)}
	for _, body := range [...]*[]byte{&c.Before, &c.After, last} {
		of.stored = body == last
		if *body == nil {
			continue
		}
		var in objectParts
		if *body, in, err = r.redactor.redactBody(*body, of); err != nil {
			return 0, err
		}
		hidden |= in
	}
	return hidden, nil
}

// isUnchanged reports whether an update changed nothing relevant for onlyIfChanged or ignoreChanges. It returns false if a
// masked value may have changed or the states cannot be compared.
func (r *rule) isUnchanged(c *event.Change, last []byte, hidden objectParts) bool {
	if r.onlyIfChanged == nil && r.ignoreChanges == nil || c.Type != event.Updated || last == nil || c.After == nil || hidden&partOfClass[c.Class] != 0 {
		return false
	}
	if r.onlyIfChanged != nil {
		if yes, err := diff.DiffersAt(last, c.After, r.onlyIfChanged); yes || err != nil {
			return false
		}
		return true
	}
	ok, err := diff.EqualExcept(last, c.After, r.ignoreChanges)
	return ok && err == nil
}

// partOfClass maps the class of an update to the parts that it may have changed. For redacted values, the class is the only
// indication of a change.
var partOfClass = map[event.Class]objectParts{
	event.ClassDeleting: inMetadata | inStatus | inSpec, // may coincide with any other change
	event.ClassSpec:     inMetadata | inStatus | inSpec, // may coincide with any other change
	event.ClassStatus:   inMetadata | inStatus,
	event.ClassMetadata: inMetadata,
	"":                  inMetadata | inStatus | inSpec,
}

// matchesFilter evaluates the filter. If the evaluation fails, the change is emitted, so that an error loses nothing.
func (r *rule) matchesFilter(c *event.Change, last []byte) bool {
	if r.filter == nil {
		return true
	}
	yes, err := r.filter.Matches(c, last)
	if err != nil {
		r.counters.failures.recordFailure(err)
		return true
	}
	return yes
}

// applyFields removes fields from the bodies, and adds the differences and the previous state.
func (r *rule) applyFields(c *event.Change, last []byte) error {
	if r.fields != nil {
		for _, body := range [...]*[]byte{&c.Before, &c.After, &last} {
			if *body == nil {
				continue
			}
			var err error
			if *body, err = r.fields.selectFrom(*body); err != nil {
				return err
			}
		}
	}
	if c.Type != event.Updated || last == nil || c.After == nil {
		return nil
	}
	r.describeUpdate(c, last)
	if r.before {
		c.Before = last
	}
	return nil
}

// describeUpdate sets the configured description of the differences.
func (r *rule) describeUpdate(c *event.Change, last []byte) {
	switch r.changed {
	case changedMerge:
		c.Patch = diff.MergePatch(last, c.After)
	case changedPatch:
		c.Patch = diff.JSONPatch(last, c.After)
	case changedPaths:
		c.Changed = diff.Pointers(last, c.After)
	}
}
