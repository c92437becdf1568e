package shape

import (
	"fmt"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// formScene is a shaper of a rule with before: full over stored objects.
type formScene struct {
	*scene
	policy       Policy
	metadataOnly bool
}

// reload makes another shaper, which reads deployments in a version, and returns whether their bodies are missing.
func (s *formScene) reload(version string) (missing bool) {
	s.t.Helper()
	var err error
	s.shaper, err = New([]Policy{s.policy}, Options{
		Key: []byte(oneKey), JournalSecret: []byte("of the journal"), Bodies: s.store, MetadataOnly: []bool{s.metadataOnly},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.to = s.shaper.WrapAppend(0, s.appendObservation)
	load := s.shaper.WrapLoad(func(_ string, known func(event.Known)) (event.StoredResource, error) {
		for _, k := range s.known {
			known(k)
		}
		return event.StoredResource{Resource: deployment}, nil
	})
	read := deployment
	read.Version = version
	stored, err := load(read, func(event.Known) {})
	if err != nil {
		s.t.Fatal(err)
	}
	return stored.BodiesMissing
}

// update emits an update that was read in a version.
func (s *formScene) update(version string) *event.Change {
	s.t.Helper()
	c := updatedTo(deployment, `{"metadata":{"name":"a"},"spec":{"in":"`+version+`"}}`)
	c.Resource.Version, c.Previous = version, "1"
	return s.shapeChanges(c)[0]
}

// TestStateOfAnotherFormIsMissing: a state that was read in another version, or of which another part was read, is no state
// before a change, nor is it compared. It is missing until it is read again, or until the next change.
func TestStateOfAnotherFormIsMissing(t *testing.T) {
	s := &formScene{scene: newScene(t, Policy{}), policy: Policy{Before: "full", Changed: ChangedValues}}
	for i, step := range []struct {
		version      string
		metadataOnly bool
		missing      bool
	}{{"v1", false, false}, {"v1", false, false}, {"v2", false, true}, {"v2", true, true}, {"v2", true, false}, {"v1", false, true}} {
		s.metadataOnly = step.metadataOnly
		if got := s.reload(step.version); got != step.missing {
			t.Errorf("step %d: bodies are missing: %t, want %t", i, got, step.missing)
		}
		first, second := s.update(step.version), s.update(step.version)
		if got := len(first.Before) == 0 || len(first.Changed) == 0; got != (step.missing || i == 0) {
			t.Errorf("step %d: %s, changed %s", i, first.Before, first.Changed)
		}
		if len(second.Before) == 0 || len(second.Changed) == 0 || first.RedactionChanged || second.RedactionChanged {
			t.Errorf("step %d: %+v, then %+v", i, first, second)
		}
	}
}

// TestObjectsAreOutdatedFromAnEditToTheirNextChange: those that destinations have as the rule was, in whatever member, also
// after another load.
func TestObjectsAreOutdatedFromAnEditToTheirNextChange(t *testing.T) {
	s := &formScene{scene: newScene(t, Policy{}), policy: Policy{Before: "full"}}
	count := 0
	update := func() {
		t.Helper()
		count++
		c := updatedTo(deployment, fmt.Sprintf(`{"metadata":{"name":"a","labels":{"n":"%d"}}}`, count))
		if c.Previous = "1"; len(s.shapeChanges(c)) != 1 {
			t.Fatal("the change is not emitted")
		}
	}
	s.reload("v1")
	update()
	for name, edit := range map[string]func(){
		"fields":        func() { s.policy.Fields = Fields{Drop: []string{"spec.other"}} },
		"onlyIfChanged": func() { s.policy.OnlyIfChanged = []string{"metadata.labels"} },
		"redaction":     func() { s.policy.RedactPaths = []string{"spec.secret"} },
		"capture":       func() { s.metadataOnly = true },
	} {
		if s.reload("v1"); len(s.shaper.Outdated()) != 0 {
			t.Errorf("before the edit of %s %v are outdated", name, s.shaper.Outdated())
		}
		edit()
		for range 2 {
			if s.reload("v1"); s.shaper.Outdated()[deployment.String()] != 1 {
				t.Errorf("after the edit of %s %v are outdated", name, s.shaper.Outdated())
			}
		}
		if update(); len(s.shaper.Outdated()) != 0 {
			t.Errorf("after a change that follows the edit of %s %v are outdated", name, s.shaper.Outdated())
		}
	}
}

// TestMetadataIsAllThatStaysStored: once only metadata is read, nothing else of what waits leaves.
func TestMetadataIsAllThatStaysStored(t *testing.T) {
	s := &formScene{scene: newScene(t, Policy{}), policy: Policy{Before: "full"}, metadataOnly: true}
	s.reload("v1")
	const whole, bare = `{"apiVersion":"v1","kind":"K","metadata":{"name":"a"},"spec":{"secret":1},"status":{}}`, `{"apiVersion":"v1","kind":"K","metadata":{"name":"a"}}`
	c := updatedTo(deployment, whole)
	c.Before, c.Changed = []byte(whole), []byte(`["/metadata/name","/spec/secret"]`)
	if !s.shaper.RedactStoredChange(c) || string(c.After) != bare || string(c.Before) != bare || c.Changed != nil {
		t.Errorf("%s, %s, changed %s", c.Before, c.After, c.Changed)
	}
	if s.shaper.RedactStoredChange(c) {
		t.Error("it changes again")
	}
	b := event.Body{Key: "a", Raw: []byte(whole)}
	if !s.shaper.RedactStoredBody(deployment, &b) || string(b.Raw) != bare {
		t.Errorf("the state is %s", b.Raw)
	}
}
