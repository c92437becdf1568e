package shape

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// shapeBody passes the state of a known object to the shaper, as a source does after a failover.
func (s *scene) shapeBody(resource event.Resource, raw string) event.Observation {
	s.t.Helper()
	s.last = event.Observation{}
	o := event.Observation{Resource: resource, Scope: "scope", Bodies: []event.Body{{Key: "n/a", UID: "u", ResourceVersion: "1", Raw: []byte(raw)}}}
	if err := s.to(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
	return s.last
}

// newFailoverScene returns a scene with a journal that knows an object, but not its state.
func newFailoverScene(t *testing.T, resource event.Resource, p Policy) *scene {
	t.Helper()
	s := newScene(t, p)
	s.known = map[string]event.Known{"n/a": {Key: "n/a", UID: "u", ResourceVersion: "1"}}
	s.last = event.Observation{Resource: resource}
	s.restartWith(p, oneKey)
	return s
}

func TestFailoverStatesAreStoredRedacted(t *testing.T) {
	for _, mode := range []string{Mask, Drop, HMAC} {
		s := newFailoverScene(t, secret, Policy{Redact: mode, Before: "full"})
		stored := string(s.shapeBody(secret, string(secretWith("hunter").After)).Bodies[0].Raw)
		if strings.Contains(stored, "hunter") || stored != string(s.shapeChanges(secretWith("hunter"))[0].After) {
			t.Errorf("%s: stored %s", mode, stored)
		}
		if got := s.shapeBody(secret, `{"data":{"p":"hunter"`); len(got.Bodies) > 0 {
			t.Errorf("%s: an unredactable body was stored: %s", mode, got.Bodies[0].Raw)
		}
	}
}

func TestFirstUpdateAfterFailoverCarriesTheState(t *testing.T) {
	for _, resource := range []event.Resource{deployment, secret} {
		s := newFailoverScene(t, resource, Policy{Redact: HMAC, Before: "full", Changed: "values"})
		c := updatedTo(resource, `{"data":{"p":"b"}}`)
		s.shapeBody(resource, `{"data":{"p":"a"}}`)
		if got := s.shapeChanges(c)[0]; len(got.Before) == 0 || len(got.Changed) == 0 || got.RedactionChanged != (resource == secret) {
			t.Errorf("%s: %+v", resource.Resource, got)
		}
	}
}

func TestStatesAreStoredOnlyIfARuleNeedsThem(t *testing.T) {
	s := newFailoverScene(t, deployment, Policy{})
	if got := s.shapeBody(deployment, `{}`); len(got.Bodies) > 0 {
		t.Errorf("%s was stored", got.Bodies[0].Raw)
	}
	for asks, p := range map[bool]Policy{false: {}, true: {Before: "full"}} {
		s := newScene(t, p)
		load := s.shaper.WrapLoad(func(string, func(event.Known)) (event.StoredResource, error) {
			return event.StoredResource{Resource: deployment, BodiesMissing: true}, nil
		})
		if got, err := load(deployment, func(event.Known) {}); err != nil || got.BodiesMissing != asks {
			t.Errorf("bodies needed: %v, missing: %v (%v)", asks, got.BodiesMissing, err)
		}
	}
}

// TestStatesAreMissingWhenARuleStartsToNeedThem: objects that were known under another rule have no stored states.
func TestStatesAreMissingWhenARuleStartsToNeedThem(t *testing.T) {
	known := event.Known{Key: "n/a", UID: "u", ResourceVersion: "1"}
	for name, one := range map[string]struct {
		before  string
		objects []event.Known
		bodies  map[string]event.Body
		want    bool
	}{
		"a rule that begins to ask": {"full", []event.Known{known}, nil, true},
		"a rule that asked before":  {"full", []event.Known{known}, map[string]event.Body{known.Key: {Key: known.Key}}, false},
		"a first start":             {"full", nil, nil, false},
		"a rule that does not ask":  {"", []event.Known{known}, nil, false},
	} {
		s := newScene(t, Policy{Before: one.before})
		s.bodies = one.bodies
		load := s.shaper.WrapLoad(func(_ string, each func(event.Known)) (event.StoredResource, error) {
			for _, k := range one.objects {
				each(k)
			}
			return event.StoredResource{Resource: deployment}, nil
		})
		if got, err := load(deployment, func(event.Known) {}); err != nil || got.BodiesMissing != one.want {
			t.Errorf("%s: states are missing: %v (%v), want %v", name, got.BodiesMissing, err, one.want)
		}
	}
}
