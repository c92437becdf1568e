package shape

import (
	"bytes"
	"hash/maphash"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// LoadFunc loads the stored state of a resource and passes each known object to known, which may be nil.
type LoadFunc func(resource string, known func(event.Known)) (event.StoredResource, error)

// WrapLoad wraps the LoadFunc from, which reads what [Shaper.WrapAppend] has written. It decrypts summaries, and records the
// objects that were last emitted under another redaction. Call the result for a resource before appending to it.
func (s *Shaper) WrapLoad(from LoadFunc) LoadFunc {
	return func(name string, known func(event.Known)) (event.StoredResource, error) {
		if known == nil {
			return from(name, nil)
		}
		byRedaction, objects := map[uint32]map[uint64]bool{}, 0
		stored, err := from(name, func(k event.Known) {
			objects++
			redaction := s.openKnown(name, &k)
			if byRedaction[redaction] == nil {
				byRedaction[redaction] = map[uint64]bool{}
			}
			byRedaction[redaction][maphash.String(staleSeed, k.Key)] = true
			known(k)
		})
		if err == nil {
			s.recordStale(name, stored.Resource, byRedaction)
			begins := objects > 0 && !slices.Contains(s.bodies.BodyResources(), name) // no rule stored bodies before
			stored.BodiesMissing = (stored.BodiesMissing || begins) && s.keepsBodiesOf(stored.Resource)
		}
		return stored, err
	}
}

// openKnown decrypts the summary of a stored object, restores the verdicts about its annotations, and returns the ID of the
// redaction under which it was last emitted.
func (s *Shaper) openKnown(name string, k *event.Known) (redaction uint32) {
	copies, sealed := splitCopies(k.Summary)
	k.Summary, redaction = s.seal.openSummary(sealed)
	k.Summary = copies.takeDigests(k.Summary)
	s.memory.restoreObject(name, k.Key, copies)
	return redaction
}

// keepsBodiesOf reports whether the rule of a resource needs bodies.
func (s *Shaper) keepsBodiesOf(resource event.Resource) bool {
	index, selected := s.ruleOf(resource)
	return selected && s.rules[index].keepsBodies
}

// recordStale records the keys of objects that were last emitted under a redaction other than the current one.
func (s *Shaper) recordStale(name string, resource event.Resource, byRedaction map[uint32]map[uint64]bool) {
	index, selected := s.ruleOf(resource)
	if !selected {
		return
	}
	r := s.rules[index].redactor
	delete(byRedaction, r.redactionID(resource))
	if !r.hidesValuesOf(resource) {
		delete(byRedaction, redactionUnknown)
	}
	s.memory.setUnknown(name, byRedaction[redactionUnknown])
	older := &staleObjects{}
	for _, keys := range byRedaction {
		if older.keys == nil {
			older.keys = keys
			continue
		}
		for key := range keys {
			older.keys[key] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale[name] = older; len(older.keys) == 0 {
		delete(s.stale, name)
	}
}

func (s *Shaper) staleOf(resource string) *staleObjects {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale[resource]
}

// sealKnown encrypts the summaries of known objects, together with the ID of the redaction under which each was emitted.
func (s *Shaper) sealKnown(r *rule, o *event.Observation, older *staleObjects) {
	current, conceals := r.redactor.redactionID(o.Resource), r.redactor.hidesValuesOf(o.Resource)
	for _, key := range o.RemovedKeys {
		if older.removeKey(key); conceals {
			s.memory.forgetObject(o.Resource, key)
		}
	}
	if len(o.Known) == 0 {
		return
	}
	o.Known = slices.Clone(o.Known) // the tracker still uses the original summaries
	var scratch []byte
	for i := range o.Known {
		k := &o.Known[i]
		redaction := current
		if older.hasKey(k.Key) { // the change was not emitted
			redaction = redactionOlder
		}
		if !conceals {
			k.Summary = s.seal.sealSummary(&scratch, k.Summary, redaction, false)
			continue
		}
		form, digests := s.memory.encode(o.Resource, k.Key)
		k.Summary = string(form) + s.seal.sealSummary(&scratch, string(digests)+k.Summary, redaction, true)
	}
}

// redactorOf returns the redactor of a resource under the current rules.
func (s *Shaper) redactorOf(resource event.Resource) *redactor {
	if index, selected := s.ruleOf(resource); selected {
		return s.rules[index].redactor
	}
	return s.strict
}

// RedactStoredChange redacts, in place, a journaled change according to the current rules, and reports whether it changed
// anything. Values that are already redacted stay unchanged. A patch is removed if the states it refers to changed. A change
// that cannot be redacted loses its bodies, as in [Shaper.WrapAppend].
func (s *Shaper) RedactStoredChange(c *event.Change) (changed bool) {
	r := s.redactorOf(c.Resource)
	if r == nil || c.Type.IsControl() {
		return false
	}
	after := c.After
	target := subject{resource: c.Resource, key: objectKey(c), identity: identityOf(c), stored: true}
	for _, body := range [...]*[]byte{&c.Before, &c.After, &c.Before} { // each may hold what is copied in the other
		if *body == nil {
			continue
		}
		redacted, _, err := r.redactBody(*body, target)
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
	c.RedactionChanged = claimsDifference(c.Type)
	if len(c.Patch) > 0 && !bytes.Equal(after, c.After) {
		c.Patch = nil
		markOmitted(c, "patch")
	}
	return true
}

// RedactStoredBody does the same for a stored state. A state that cannot be redacted is emptied.
func (s *Shaper) RedactStoredBody(resource event.Resource, b *event.Body) (changed bool) {
	r := s.redactorOf(resource)
	if r == nil || len(b.Raw) == 0 {
		return false
	}
	identity := identityOf(&event.Change{Resource: resource, UID: b.UID, Name: b.Key})
	target := subject{resource: resource, key: b.Key, identity: identity, stored: true}
	redacted, _, err := r.redactBody(b.Raw, target)
	if err != nil {
		redacted = nil
	}
	changed = !bytes.Equal(redacted, b.Raw)
	b.Raw = redacted
	return changed
}
