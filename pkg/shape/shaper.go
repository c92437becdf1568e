package shape

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/deltas"
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
	s := &Shaper{bodies: options.Bodies, ruleOf: options.RuleOf, flags: map[string]*objectFlags{}, memory: &copyMemory{resources: map[string]*resourceCopies{}}}
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

// LoadFunc loads the stored state of a resource by its name, and passes each known object to known, which may be nil.
type LoadFunc func(resource string, known func(event.Known)) (event.StoredResource, error)

// WrapLoad wraps the LoadFunc from, which reads what [Shaper.WrapAppend] has written, for a resource in the version in which
// it will be read. It decrypts summaries, and records the objects that were last emitted under another redaction or in
// another form. Call the result for a resource before appending to it.
func (s *Shaper) WrapLoad(from LoadFunc) func(event.Resource, func(event.Known)) (event.StoredResource, error) {
	return func(resource event.Resource, known func(event.Known)) (event.StoredResource, error) {
		name := resource.String()
		if known == nil {
			return from(name, nil)
		}
		r := s.ruleOfResource(resource)
		objects, bodiesMissing, found := 0, false, &objectFlags{}
		stored, err := from(name, func(k event.Known) {
			as := s.openKnown(resource, r, &k)
			if r != nil {
				is := r.compareEmission(resource, as)
				found.change(k.Key, is, 0)
				if is&otherBody != 0 && as.form != r.formOf(resource) {
					k.Summary, bodiesMissing = deltas.ForgetParts(k.Summary), true
				}
			}
			if objects++; r != nil || !as.filtered { // otherwise no destination needs its delete
				known(k)
			}
		})
		if err == nil && r != nil {
			s.mu.Lock()
			s.flags[name] = found
			s.mu.Unlock()
			begins := objects > 0 && !slices.Contains(s.bodies.BodyResources(), name) // no rule stored bodies before
			stored.BodiesMissing = (stored.BodiesMissing || begins || bodiesMissing) && r.keepsBodies
		}
		return stored, err
	}
}

// openKnown decrypts the summary of a stored object, restores the verdicts about its annotations, and returns how it was
// last emitted. Of an object that an exporter without such verdicts has emitted, none are known.
func (s *Shaper) openKnown(resource event.Resource, r *rule, k *event.Known) emission {
	copies, sealed := splitCopies(k.Summary)
	summary, as := s.seal.openSummary(sealed)
	k.Summary = copies.takeDigests(summary)
	copies.unknown = copies.unknown || as.redaction == redactionUnknown && r != nil && r.redactor.hidesValuesOf(resource)
	s.memory.restoreObject(resource, k.Key, copies)
	return as
}

// ruleOfResource returns the rule that owns a resource; nil if there is none.
func (s *Shaper) ruleOfResource(resource event.Resource) *rule {
	if index, selected := s.ruleOf(resource); selected {
		return s.rules[index]
	}
	return nil
}

// ruleOfStored is ruleOfResource, and the strictest rule for a resource that no rule owns any more.
func (s *Shaper) ruleOfStored(resource event.Resource) *rule {
	return cmp.Or(s.ruleOfResource(resource), s.strict)
}

// formOf returns the ID of the form in which objects of a resource are read: in a version, as a whole or their metadata, and
// with which annotations.
// States of different forms cannot be compared.
func (r *rule) formOf(resource event.Resource) uint32 {
	return hashDescription(fmt.Sprintf("%s %t%s", resource.Version, r.metadataOnly, r.added.members))
}

// emissionOf returns how objects of a resource are emitted now.
func (r *rule) emissionOf(resource event.Resource) emission {
	return emission{redaction: r.redactor.redactionID(resource), form: r.formOf(resource), shape: r.shapeID}
}

// compareEmission compares how an object was last emitted with how it is emitted now.
func (r *rule) compareEmission(resource event.Resource, as emission) (is flags) {
	now := r.emissionOf(resource)
	if as.redaction != now.redaction && (as.redaction != redactionUnknown || r.redactor.hidesValuesOf(resource)) {
		is |= otherRedaction | otherBody
	}
	if as.form != now.form && as.form != redactionUnknown && resource.Version != "" {
		is |= otherBody | otherShape
	}
	if as.shape != now.shape && as.shape != redactionUnknown {
		is |= otherShape
	}
	if as.filtered {
		is |= notEmitted
	}
	return is
}

// Outdated counts the objects, by resource, that destinations have as their rule was before an edit.
func (s *Shaper) Outdated() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]int{}
	for resource, of := range s.flags {
		of.mu.Lock()
		if of.outdated > 0 {
			all[resource] = of.outdated
		}
		of.mu.Unlock()
	}
	return all
}

func (s *Shaper) flagsOf(resource string) *objectFlags {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flags[resource] == nil {
		s.flags[resource] = &objectFlags{}
	}
	return s.flags[resource]
}

// sealKnown encrypts the summaries of known objects, together with how each was emitted.
func (s *Shaper) sealKnown(r *rule, o *event.Observation, of *objectFlags) {
	now, conceals := r.emissionOf(o.Resource), r.redactor.hidesValuesOf(o.Resource)
	for _, key := range o.RemovedKeys {
		if of.change(key, 0, outdated|otherBody|notEmitted); conceals {
			s.memory.storeObject(o.Resource, key, &objectCopies{modified: true})
		}
	}
	if len(o.Known) == 0 {
		return
	}
	o.Known = slices.Clone(o.Known) // the tracker still uses the original summaries
	var scratch []byte
	for i := range o.Known {
		k, as := &o.Known[i], now
		as.filtered = of.has(k.Key, notEmitted)
		if of.has(k.Key, otherRedaction) { // the change was not emitted
			as.redaction = redactionOlder
		} else if r.keepsBodies && of.has(k.Key, otherBody) { // the summary is known, and the body is still of another form
			as.form = redactionOlder
		}
		if !conceals {
			k.Summary = s.seal.sealSummary(&scratch, k.Summary, as, false)
			continue
		}
		form, digests := s.memory.encode(o.Resource, k.Key)
		k.Summary = string(form) + s.seal.sealSummary(&scratch, string(digests)+k.Summary, as, true)
	}
}

// redactStored redacts a stored state of an object, and cuts it to its metadata if no more is read.
func (s *Shaper) redactStored(body []byte, of subject) (redacted []byte, err error) {
	r := s.ruleOfStored(of.resource)
	if r.metadataOnly {
		if body, err = metadataFields.selectFrom(body); err != nil {
			return nil, err
		}
	}
	if r.redactor == nil {
		return body, nil
	}
	redacted, _, err = r.redactor.redactBody(body, of)
	return redacted, err
}

// RedactStoredChange redacts, in place, a journaled change according to the current rules, and reports whether it changed
// anything. Values that are already redacted stay unchanged. If only metadata is read by now, the rest is removed. What it
// changed is compared again. A change that cannot be redacted loses its bodies, as in [Shaper.WrapAppend].
func (s *Shaper) RedactStoredChange(c *event.Change) (changed bool) {
	if c.Type.IsControl() {
		return false
	}
	if c.Before == nil && c.HasValues() { // they show the state before, which is redacted like any other
		var err error
		if c.Before, err = diff.Revert(c.After, c.Changed); err != nil {
			changed = true
		}
		defer func() { c.Before = nil }()
	}
	target := subject{resource: c.Resource, key: objectKey(c), identity: identityOf(c), stored: true}
	for _, body := range [...]*[]byte{&c.Before, &c.After, &c.Before} { // each may hold what is copied in the other
		if *body == nil {
			continue
		}
		redacted, err := s.redactStored(*body, target)
		if err != nil {
			withholdBodies(c, err)
			return true
		}
		changed = changed || !bytes.Equal(redacted, *body)
		*body = redacted
	}
	if !changed {
		return false
	}
	switch {
	case len(c.Changed) == 0:
	case c.Before == nil || c.After == nil: // which of them show no more is unknown without the state before
		c.Changed = nil
		markOmitted(c, "changed")
	case c.HasValues():
		c.Changed = diff.Values(c.Before, c.After)
	default:
		c.Changed = diff.Paths(c.Before, c.After)
	}
	c.RedactionChanged = claimsDifference(c.Type)
	return true
}

// RedactStoredBody does the same for a stored state. A state that cannot be redacted is emptied.
func (s *Shaper) RedactStoredBody(resource event.Resource, b *event.Body) (changed bool) {
	if len(b.Raw) == 0 {
		return false
	}
	identity := identityOf(&event.Change{Resource: resource, UID: b.UID, Name: b.Key})
	redacted, err := s.redactStored(b.Raw, subject{resource: resource, key: b.Key, identity: identity, stored: true})
	if err != nil {
		redacted = nil
	}
	changed = !bytes.Equal(redacted, b.Raw)
	b.Raw = redacted
	return changed
}

// RedactMetadata returns an object of which only the metadata was read, redacted by the rule that owns its type, or by the
// strictest. Where that hides values of the object, annotations with JSON are hidden, because they may be copies.
func (s *Shaper) RedactMetadata(resource event.Resource, o *deltas.Object) ([]byte, error) {
	r := s.ruleOfStored(resource)
	if r.redactor == nil {
		return o.Raw, nil
	}
	identity := identityOf(&event.Change{Resource: resource, UID: o.UID, Name: o.Key()})
	redacted, _, err := r.redactor.redactBody(o.Raw, subject{resource: resource, identity: identity, partial: true})
	return redacted, err
}
