package shape

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Options is what a Shaper needs besides its rules.
type Options struct {
	// Key of the hashes; needed where a rule redacts by hmac.
	Key []byte
}

// Shaper shapes the changes of all rules. It is safe for concurrent use.
type Shaper struct{ rules []*rule }

// New returns a shaper for the policies of all rules, in their order. They must be valid.
func New(policies []Policy, options Options) (*Shaper, error) {
	s := &Shaper{}
	for i, p := range policies {
		compiled, err := compile(p, options)
		if err != nil {
			return nil, fmt.Errorf("resources[%d]: %w", i, err)
		}
		s.rules = append(s.rules, compiled)
	}
	return s, nil
}

// rule is a [Policy] that is ready to be used.
type rule struct {
	redactor *redactor
	withheld atomic.Uint64
}

func compile(p Policy, options Options) (*rule, error) {
	paths, err := parsePaths(p.RedactPaths)
	if err != nil {
		return nil, fmt.Errorf("redactPaths: %w", err)
	}
	c := &rule{}
	if c.redactor, err = newRedactor(p.mode(), paths, options.Key); err != nil {
		return nil, fmt.Errorf("redactPaths: %w", err)
	}
	return c, nil
}

func (p Policy) mode() string {
	if p.Redact == "" {
		return Mask
	}
	return p.Redact
}

// Shape returns what takes the observations of one scope made by the rule with that index, in front of to. It changes
// the changes it is given: they must not have been shown to anyone else.
func (s *Shaper) Shape(index int, to deltas.Append) deltas.Append {
	r := s.rules[index]
	return func(ctx context.Context, o deltas.Observation) error {
		for _, c := range o.Changes {
			r.redact(c)
		}
		return to(ctx, o)
	}
}

// redact takes the secrets out of a change.
func (r *rule) redact(c *event.Change) {
	t := r.redactor.of(c.Resource)
	if t == nil {
		return
	}
	for _, body := range []*[]byte{&c.Before, &c.After} {
		if *body == nil {
			continue
		}
		redacted, _, err := r.redactor.redact(*body, t)
		if err != nil {
			c.Before, c.After, c.Withheld = nil, nil, unredactable(err)
			r.withheld.Add(1)
			return
		}
		*body = redacted
	}
}
