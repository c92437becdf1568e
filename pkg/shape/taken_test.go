package shape

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// bring gives the shaper the state of an object that is known, as a source does after a take-over.
func (s *scene) bring(resource event.Resource, raw string) event.Observation {
	s.t.Helper()
	s.last = event.Observation{}
	o := event.Observation{Resource: resource, Scope: "scope", Bodies: []event.Body{{Key: "n/a", UID: "u", ResourceVersion: "1", Raw: []byte(raw)}}}
	if err := s.to(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
	return s.last
}

// takenOver is a scene with a journal that knows an object, and nothing of its state.
func takenOver(t *testing.T, resource event.Resource, p Policy) *scene {
	t.Helper()
	s := shaping(t, p)
	s.known = map[string]event.Known{"n/a": {Key: "n/a", UID: "u", ResourceVersion: "1"}}
	s.last = event.Observation{Resource: resource}
	s.restart(p, oneKey)
	return s
}

func TestStatesThatAreBroughtAreStoredRedactedOnly(t *testing.T) {
	for _, mode := range []string{Mask, Drop, HMAC} {
		s := takenOver(t, secret, Policy{Redact: mode, Before: "full"})
		stored := string(s.bring(secret, string(secretWith("hunter").After)).Bodies[0].Raw)
		if strings.Contains(stored, "hunter") || stored != string(s.tell(secretWith("hunter"))[0].After) {
			t.Errorf("%s: stored %s", mode, stored)
		}
		if got := s.bring(secret, `{"data":{"p":"hunter"`); len(got.Bodies) > 0 {
			t.Errorf("%s: what cannot be redacted was stored: %s", mode, got.Bodies[0].Raw)
		}
	}
}

func TestTheFirstUpdateAfterATakeOverCarriesTheStateThatWasBrought(t *testing.T) {
	for _, resource := range []event.Resource{deployment, secret} {
		s := takenOver(t, resource, Policy{Redact: HMAC, Before: "full", Changed: "jsonPatch"})
		c := updatedTo(resource, `{"data":{"p":"b"}}`)
		s.bring(resource, `{"data":{"p":"a"}}`)
		if got := s.tell(c)[0]; len(got.Before) == 0 || len(got.Patch) == 0 || got.RedactionChanged != (resource == secret) {
			t.Errorf("%s: %+v", resource.Resource, got)
		}
	}
}

func TestStatesAreNotStoredWhereNobodyAsksForThem(t *testing.T) {
	s := takenOver(t, deployment, Policy{})
	if got := s.bring(deployment, `{}`); len(got.Bodies) > 0 {
		t.Errorf("%s was stored", got.Bodies[0].Raw)
	}
	for asks, p := range map[bool]Policy{false: {}, true: {Before: "full"}} {
		s := shaping(t, p)
		load := s.shaper.Load(func(string, func(event.Known)) (event.StoredResource, error) {
			return event.StoredResource{Resource: deployment, Bodiless: true}, nil
		})
		if got, err := load("deployments.apps", func(event.Known) {}); err != nil || got.Bodiless != asks {
			t.Errorf("bodies are asked for: %v, and missing: %v (%v)", asks, got.Bodiless, err)
		}
	}
}

// TestStatesAreMissingWhereARuleBeginsToAskForThem: what was known under another rule has none.
func TestStatesAreMissingWhereARuleBeginsToAskForThem(t *testing.T) {
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
		s := shaping(t, Policy{Before: one.before})
		s.bodies = one.bodies
		load := s.shaper.Load(func(_ string, each func(event.Known)) (event.StoredResource, error) {
			for _, k := range one.objects {
				each(k)
			}
			return event.StoredResource{Resource: deployment}, nil
		})
		if got, err := load("deployments.apps", func(event.Known) {}); err != nil || got.Bodiless != one.want {
			t.Errorf("%s: states are missing: %v (%v), want %v", name, got.Bodiless, err, one.want)
		}
	}
}
