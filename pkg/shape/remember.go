package shape

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
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
			var redaction uint32
			k.Summary, redaction = s.seal.openSummary(k.Summary)
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
	for _, key := range o.RemovedKeys {
		older.removeKey(key)
	}
	if len(o.Known) == 0 {
		return
	}
	current, conceals := r.redactor.redactionID(o.Resource), r.redactor.hidesValuesOf(o.Resource)
	o.Known = slices.Clone(o.Known) // the tracker still uses the original summaries
	for i := range o.Known {
		k := &o.Known[i]
		redaction := current
		if older.hasKey(k.Key) { // the change was not emitted
			redaction = redactionOlder
		}
		k.Summary = s.seal.sealSummary(k.Summary, redaction, conceals)
	}
}

// redactionID returns an ID of everything that determines the redaction of a resource, including the key.
func (r *redactor) redactionID(resource event.Resource) uint32 {
	if isSecret(resource) && r != nil {
		return r.secretID
	}
	if r == nil {
		return firstRedaction
	}
	return r.otherID
}

func hashDescription(description string) uint32 {
	sum := sha256.Sum256([]byte(description))
	return max(binary.BigEndian.Uint32(sum[:]), firstRedaction+1)
}

// redactionVersion is increased when the same configuration redacts different values than before.
const redactionVersion = 2

// describeRedaction returns everything that the redaction of a policy depends on, for Secrets and for other resources.
func (p Policy) describeRedaction(key []byte) (secret, other string) {
	paths := slices.Sorted(slices.Values(p.RedactPaths))
	other = fmt.Sprintf("%d %s %q", redactionVersion, p.redactMode(), paths)
	if p.redactMode() == HMAC {
		other += " " + newHasher(key, p.HMAC.Scope).prefix
	}
	return other + " " + p.SecretMetadata.describeShown(), other
}

// Fingerprint returns a hash of everything that the redaction of a policy depends on. It does not reveal the key.
func (p Policy) Fingerprint(key []byte) string {
	if p.redactMode() == None {
		return None
	}
	secret, _ := p.describeRedaction(key)
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:16])
}
