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

// LoadFunc loads what is stored of a resource and gives each object that is known of it to known, which may be nil.
type LoadFunc func(resource string, known func(event.Known)) (event.StoredResource, error)

// WrapLoad returns what loads resources for a source, in front of from, which the observations of [Shaper.WrapAppend] went to: it
// opens what is remembered of objects, and notices those that were last emitted under another redaction. Call it for a
// resource before the resource appends.
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
			begins := objects > 0 && !slices.Contains(s.bodies.BodyResources(), name) // under another rule nobody asked for them
			stored.BodiesMissing = (stored.BodiesMissing || begins) && s.keepsBodiesOf(stored.Resource)
		}
		return stored, err
	}
}

// keepsBodiesOf says that the rule for a resource asks for bodies.
func (s *Shaper) keepsBodiesOf(resource event.Resource) bool {
	index, selected := s.ruleOf(resource)
	return selected && s.rules[index].keepsBodies
}

// recordStale keeps the keys of what was emitted under another redaction than that of the rule that selects the resource now.
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

// sealKnown seals what is to be remembered, with the redaction under which the object was emitted.
func (s *Shaper) sealKnown(r *rule, o *event.Observation, older *staleObjects) {
	for _, key := range o.RemovedKeys {
		older.removeKey(key)
	}
	if len(o.Known) == 0 {
		return
	}
	current, conceals := r.redactor.redactionID(o.Resource), r.redactor.hidesValuesOf(o.Resource)
	o.Known = slices.Clone(o.Known) // whoever made it goes on comparing with the summaries
	for i := range o.Known {
		k := &o.Known[i]
		redaction := current
		if older.hasKey(k.Key) { // its change was not emitted
			redaction = redactionOlder
		}
		k.Summary = s.seal.sealSummary(k.Summary, redaction, conceals)
	}
}

// redactionID tells redactions of a resource apart: what they redact and how, the key included.
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

// redactionVersion is raised when a redaction with the same configuration redacts something else than before.
const redactionVersion = 2

// describeRedaction says what the redaction of a policy depends on, in Secrets and in everything else.
func (p Policy) describeRedaction(key []byte) (secret, other string) {
	paths := slices.Sorted(slices.Values(p.RedactPaths))
	other = fmt.Sprintf("%d %s %q", redactionVersion, p.redactMode(), paths)
	if p.redactMode() == HMAC {
		other += " " + newHasher(key, p.HMAC.Scope).prefix
	}
	return other + " " + p.SecretMetadata.describeShown(), other
}

// Fingerprint names everything that the redaction of a policy depends on, and gives nothing of the key away.
func (p Policy) Fingerprint(key []byte) string {
	if p.redactMode() == None {
		return None
	}
	secret, _ := p.describeRedaction(key)
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:16])
}
