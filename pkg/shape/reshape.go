package shape

import (
	"bytes"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// newStrictRedactor returns the redactor for resources without a rule: the default redaction, with the paths of all
// policies.
func newStrictRedactor(policies []Policy) (*redactor, error) {
	var all []path.Path
	for _, p := range policies {
		paths, err := parsePaths(p.RedactPaths)
		if err != nil {
			return nil, err
		}
		all = append(all, paths...)
	}
	return newRedactor(Policy{}, all, nil)
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
	for _, body := range [...]*[]byte{&c.Before, &c.After} {
		if *body == nil {
			continue
		}
		redacted, _, err := r.redactBody(*body, subject{resource: c.Resource, identity: identityOf(c), stored: true})
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
	of := subject{resource: resource, identity: identityOf(&event.Change{Resource: resource, UID: b.UID, Name: b.Key}), stored: true}
	redacted, _, err := r.redactBody(b.Raw, of)
	if err != nil {
		redacted = nil
	}
	changed = !bytes.Equal(redacted, b.Raw)
	b.Raw = redacted
	return changed
}
