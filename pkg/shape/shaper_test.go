package shape

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func updatedTo(resource event.Resource, after string) *event.Change {
	return &event.Change{Type: event.Updated, Resource: resource, Namespace: "n", Name: "a", UID: "u", ResourceVersion: "2", Class: event.ClassSpec, After: []byte(after)}
}

// store keeps bodies and observations in memory.
type store struct {
	bodies  map[string]event.Body // by key, of one scope
	dropped []string
	known   map[string]event.Known
	emitted []*event.Change
	last    event.Observation
}

var _ Bodies = (*store)(nil)

func (s *store) Body(_, key string) (event.Body, bool, error) {
	b, ok := s.bodies[key]
	return b, ok, nil
}

func (s *store) BodyResources() []string {
	if len(s.bodies) == 0 {
		return nil
	}
	return []string{"deployments.apps"}
}

func (s *store) DropBodies(_ context.Context, resource string) error {
	s.dropped, s.bodies = append(s.dropped, resource), nil
	return nil
}

func (s *store) appendObservation(_ context.Context, o event.Observation) error {
	for _, key := range o.RemovedKeys {
		delete(s.bodies, key)
	}
	for _, k := range o.Known {
		if s.known == nil {
			s.known = map[string]event.Known{}
		}
		s.known[k.Key] = k
	}
	o.Known = slices.Clone(o.Known)
	for _, b := range o.Bodies {
		if s.bodies == nil {
			s.bodies = map[string]event.Body{}
		}
		s.bodies[b.Key] = b
	}
	s.emitted, s.last = append(s.emitted, o.Changes...), o
	return nil
}

// scene shapes the changes of one scope under one policy.
type scene struct {
	*store
	t      *testing.T
	shaper *Shaper
	to     event.AppendFunc
}

func newScene(t *testing.T, p Policy) *scene {
	t.Helper()
	s := &scene{store: &store{}, t: t}
	s.restartWith(p, "0123456789abcdef")
	return s
}

// restartWith restarts with another policy and the stored state. It returns the summaries that a source would receive.
func (s *scene) restartWith(p Policy, key string) map[string]string {
	s.t.Helper()
	if err := p.Validate("resources[0]", true); err != nil {
		s.t.Fatal(err)
	}
	var err error
	if s.shaper, err = New([]Policy{p}, Options{Key: []byte(key), JournalSecret: []byte("of the journal"), Bodies: s.store}); err != nil {
		s.t.Fatal(err)
	}
	s.to = s.shaper.WrapAppend(0, s.appendObservation)
	summaries := map[string]string{}
	load := s.shaper.WrapLoad(func(_ string, known func(event.Known)) (event.StoredResource, error) {
		for _, k := range s.known {
			known(k)
		}
		return event.StoredResource{Resource: s.last.Resource}, nil
	})
	if _, err = load(s.last.Resource, func(k event.Known) { summaries[k.Key] = k.Summary }); err != nil {
		s.t.Fatal(err)
	}
	return summaries
}

// shapeChanges shapes one observation and returns the emitted changes.
func (s *scene) shapeChanges(changes ...*event.Change) []*event.Change {
	s.t.Helper()
	s.emitted = nil
	o := event.Observation{Resource: deployment, Scope: "scope", Changes: changes, Position: "7"}
	for _, c := range changes {
		if c.Type.IsControl() {
			continue
		}
		o.Resource = c.Resource
		if c.Type == event.Deleted {
			o.RemovedKeys = append(o.RemovedKeys, objectKey(c))
			continue
		}
		k := event.Known{Key: objectKey(c), UID: c.UID, ResourceVersion: c.ResourceVersion, Summary: fmt.Sprintf("digests of %s", c.After)}
		o.Known = append(o.Known, k)
	}
	want := slices.Clone(o.Known)
	if err := s.to(context.Background(), o); err != nil {
		s.t.Fatal(err)
	}
	for i := range s.last.Known {
		k := &s.last.Known[i]
		copies, sealed := splitCopies(k.Summary)
		k.Summary, _ = s.shaper.seal.openSummary(sealed)
		k.Summary = copies.takeDigests(k.Summary)
	}
	if s.last.Position != "7" || !reflect.DeepEqual(s.last.Known, want) {
		s.t.Errorf("position %q and known objects %v did not pass", s.last.Position, s.last.Known)
	}
	return s.emitted
}

func newObject(spec, status string) string {
	return fmt.Sprintf(`{"metadata":{"name":"a","resourceVersion":"%d","generation":%d},"spec":%s,"status":%s}`, len(spec)+len(status), len(spec), spec, status)
}

func addedWith(after string) *event.Change {
	c := updatedTo(deployment, after)
	c.Type, c.Class = event.Added, ""
	return c
}

func TestAnUpdateCarriesTheStateBeforeIt(t *testing.T) {
	s := newScene(t, Policy{Before: "full", Changed: "paths"})
	first, second := newObject("1", "1"), newObject("1", "22")
	if got := s.shapeChanges(addedWith(first)); got[0].Before != nil || got[0].Changed != nil {
		t.Errorf("added: %+v", got[0])
	}
	got := s.shapeChanges(updatedTo(deployment, second))[0]
	if string(got.Before) != first || string(got.Changed) != `["/metadata/resourceVersion","/status"]` {
		t.Errorf("before %s, changed %s", got.Before, got.Changed)
	}
	vanished := &event.Change{Type: event.Deleted, Resource: deployment, Namespace: "n", Name: "a", UID: "u", FinalStateUnknown: true}
	if got := s.shapeChanges(vanished)[0]; string(got.Before) != second {
		t.Errorf("a delete while away carries %s", got.Before)
	}
	if len(s.bodies) != 0 {
		t.Errorf("bodies are left: %v", s.bodies)
	}
}

func TestStateOfANamesakeIsNotUsedAsStateBefore(t *testing.T) {
	s := newScene(t, Policy{Before: "full"})
	s.shapeChanges(addedWith(newObject("1", "1")))
	gone := &event.Change{Type: event.Deleted, Resource: deployment, Namespace: "n", Name: "a", UID: "u", FinalStateUnknown: true}
	next := addedWith(newObject("2", "2"))
	next.UID = "v"
	update := updatedTo(deployment, newObject("3", "3"))
	update.UID = "v"
	got := s.shapeChanges(gone, next, update)
	if string(got[0].Before) != newObject("1", "1") || got[1].Before != nil || string(got[2].Before) != newObject("2", "2") {
		t.Errorf("before: %s, %s, %s", got[0].Before, got[1].Before, got[2].Before)
	}
}

func TestDefaultPolicyStoresNoStates(t *testing.T) {
	s := newScene(t, Policy{})
	s.bodies = map[string]event.Body{"n/a": {Key: "n/a"}} // stored by an earlier configuration
	body := []byte(newObject("1", "1"))
	c := updatedTo(deployment, "")
	c.After = body
	if got := s.shapeChanges(c); &got[0].After[0] != &body[0] || got[0].Before != nil || len(s.last.Bodies) != 0 {
		t.Errorf("%+v, bodies %v", got[0], s.last.Bodies)
	}
	if !slices.Equal(s.dropped, []string{"deployments.apps"}) {
		t.Errorf("dropped the bodies of %v", s.dropped)
	}
}

func TestUpdatesOutsideTheListedPathsAreNotEmitted(t *testing.T) {
	for name, c := range map[string]struct {
		policy        Policy
		before, after string
		emitted       bool
	}{
		"ignored":                     {Policy{IgnoreChanges: []string{"status.heartbeat"}}, newObject("1", `{"heartbeat":1}`), newObject("1", `{"heartbeat":22}`), false},
		"ignored, spelled otherwise":  {Policy{IgnoreChanges: []string{"status.heartbeat"}}, newObject(`{"a":"A","b":2}`, `{"heartbeat":1}`), newObject(`{"b":2, "a":"\u0041"}`, `{"heartbeat":22}`), false},
		"ignored, in a list":          {Policy{IgnoreChanges: []string{"status.conditions[*].time"}}, newObject("1", `{"conditions":[{"time":1},{"time":2}]}`), newObject("1", `{"conditions":[{"time":3},{"time":4}]}`), false},
		"ignored, came":               {Policy{IgnoreChanges: []string{"status.heartbeat"}}, newObject("1", `{}`), newObject("1", `{"heartbeat":1}`), false},
		"ignored, and something else": {Policy{IgnoreChanges: []string{"status.heartbeat"}}, newObject("1", `{"heartbeat":1}`), newObject("2", `{"heartbeat":2}`), true},
		"a list grew":                 {Policy{IgnoreChanges: []string{"status.conditions[*].time"}}, newObject("1", `{"conditions":[{"time":1}]}`), newObject("1", `{"conditions":[{"time":1},{"time":2}]}`), true},
		"another type":                {Policy{IgnoreChanges: []string{"status.a"}}, newObject("1", `{"a":1}`), newObject("1", `[]`), true},
		"only, changed":               {Policy{OnlyIfChanged: []string{"spec"}}, newObject("1", "1"), newObject("2", "1"), true},
		"only, not changed":           {Policy{OnlyIfChanged: []string{"spec", "status.phase"}}, newObject("1", `{"phase":"A","x":1}`), newObject("1", `{"phase":"A","x":2}`), false},
		"only, came":                  {Policy{OnlyIfChanged: []string{"status.phase"}}, newObject("1", `{}`), newObject("1", `{"phase":"A"}`), true},
		"only, went with its parent":  {Policy{OnlyIfChanged: []string{"status.phase"}}, newObject("1", `{"phase":"A"}`), newObject("1", `null`), true},
		"only, in a list":             {Policy{OnlyIfChanged: []string{"status.c[*].s"}}, newObject("1", `{"c":[{"s":1,"t":1}]}`), newObject("1", `{"c":[{"s":1,"t":2}]}`), false},
		"only, the list grew":         {Policy{OnlyIfChanged: []string{"status.c[*].s"}}, newObject("1", `{"c":[{"s":1}]}`), newObject("1", `{"c":[{"s":1},{"s":1}]}`), true},
		"only, the list became a map": {Policy{OnlyIfChanged: []string{"status.c.s"}}, newObject("1", `{"c":[{"s":1}]}`), newObject("1", `{"c":{"s":1}}`), true},
		"cannot be compared":          {Policy{IgnoreChanges: []string{"status"}}, newObject(`{"a":1,"a":2}`, "1"), newObject(`{"a":1,"a":3}`, "1"), true},
	} {
		s := newScene(t, c.policy)
		s.shapeChanges(addedWith(c.before))
		if emitted := len(s.shapeChanges(updatedTo(deployment, c.after))) == 1; emitted != c.emitted {
			t.Errorf("%s: emitted %v, want %v", name, emitted, c.emitted)
		}
		if string(s.bodies["n/a"].Raw) != c.after {
			t.Errorf("%s: the stored state is %s", name, s.bodies["n/a"].Raw)
		}
		if got := s.shaper.Stats()[0].Dropped["unchanged"]; (got == 1) == c.emitted {
			t.Errorf("%s: %d counted", name, got)
		}
	}
}

func TestChangesOfMaskedValuesAreEmitted(t *testing.T) {
	withValue := func(class event.Class, v string) *event.Change {
		c := updatedTo(secret, `{"metadata":{"resourceVersion":"1","labels":{"a":"b"}},"data":{"p":"`+v+`"}}`)
		c.Class = class
		return c
	}
	for _, p := range []Policy{{OnlyIfChanged: []string{"data"}}, {IgnoreChanges: []string{"metadata.labels"}}} {
		p.SecretMetadata.Labels = []string{"*"}
		s := newScene(t, p)
		s.shapeChanges(withValue("", "one"))
		if len(s.shapeChanges(withValue(event.ClassSpec, "two"))) != 1 {
			t.Errorf("%+v: a change of a masked value was not emitted", p)
		}
		if len(s.shapeChanges(withValue(event.ClassMetadata, "two"))) != 0 {
			t.Errorf("%+v: an update of metadata was emitted", p)
		}
		p.Redact = HMAC
		s = newScene(t, p)
		s.shapeChanges(withValue("", "one"))
		if len(s.shapeChanges(withValue(event.ClassSpec, "two"))) != 1 || len(s.shapeChanges(withValue(event.ClassSpec, "two"))) != 0 {
			t.Errorf("%+v: hashes do not show the change", p)
		}
	}
}

func TestStoredStatesAreRedacted(t *testing.T) {
	s := newScene(t, Policy{Before: "full", Changed: "values"})
	s.bodies = map[string]event.Body{"n/a": {Key: "n/a", UID: "u", Raw: []byte(`{"data":{"p":"stored in the clear"}}`)}}
	got := s.shapeChanges(updatedTo(secret, `{"data":{"p":"hunter","q":"hunter"}}`))[0]
	if all := fmt.Sprintf("%s%s%s%s", got.Before, got.After, got.Changed, s.bodies["n/a"].Raw); strings.Contains(all, "hunter") || strings.Contains(all, "clear") {
		t.Error(all)
	}
	if string(got.Before) != `{"data":{"p":"***"}}` || string(got.Changed) != `[{"path":"/data/q","to":"***"}]` {
		t.Errorf("before %s, changed %s", got.Before, got.Changed)
	}
}

func TestWithheldStateIsNotUsedAsStateBefore(t *testing.T) {
	s := newScene(t, Policy{Before: "full"})
	s.shapeChanges(updatedTo(secret, `{"data":{"p":"a"}}`))
	if got := s.shapeChanges(updatedTo(secret, `{"data":{"p":"a"},"data":{}}`)); got[0].Withheld == "" || got[0].After != nil {
		t.Errorf("%+v", got[0])
	}
	if got := s.shapeChanges(updatedTo(secret, `{"data":{"p":"b"}}`)); got[0].Before != nil || got[0].After == nil {
		t.Errorf("%+v", got[0])
	}
	if got := s.shaper.Stats()[0].Withheld; got != 1 {
		t.Errorf("%d counted", got)
	}
}

func TestFieldsAreKeptAndDropped(t *testing.T) {
	const body = `{"apiVersion":"v1","kind":"X","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"1","labels":{"l":"1","m":"2"},"annotations":{"x":"y"}},"spec":{"c":[{"image":"i","env":[1]},{"image":"j"}],"n":1},"status":{"a":1,"b":{"c":2}}}`
	const id = `"apiVersion":"v1","kind":"X","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"1"`
	for name, c := range map[string]struct {
		fields Fields
		want   string
	}{
		"nothing":              {Fields{}, body},
		"drop":                 {Fields{Drop: []string{"status", "metadata.annotations", "spec.c[*].env", "not.there"}}, `{` + id + `,"labels":{"l":"1","m":"2"}},"spec":{"c":[{"image":"i"},{"image":"j"}],"n":1}}`},
		"drop all":             {Fields{Drop: []string{"[*]"}}, `{` + id + `}}`},
		"drop identity":        {Fields{Drop: []string{"metadata", "kind", "spec", "status"}}, `{` + id + `}}`},
		"keep":                 {Fields{Keep: []string{"spec.c[*].image", "metadata.labels.l"}}, `{` + id + `,"labels":{"l":"1"}},"spec":{"c":[{"image":"i"},{"image":"j"}]}}`},
		"keep nothing":         {Fields{Keep: []string{"nothing"}}, `{` + id + `}}`},
		"keep, without [*]":    {Fields{Keep: []string{"spec.c.image"}}, `{` + id + `},"spec":{"c":[{"image":"i"},{"image":"j"}]}}`},
		"keep and drop":        {Fields{Keep: []string{"status"}, Drop: []string{"status.b"}}, `{` + id + `},"status":{"a":1}}`},
		"keep within a scalar": {Fields{Keep: []string{"spec.n.x", "status.a"}}, `{` + id + `},"spec":{},"status":{"a":1}}`},
	} {
		s := newScene(t, Policy{Fields: c.fields})
		if got := s.shapeChanges(updatedTo(deployment, body)); string(got[0].After) != c.want {
			t.Errorf("%s\n got %s\nwant %s", name, got[0].After, c.want)
		}
	}
}

func TestDroppedFieldsAreInNoList(t *testing.T) {
	s := newScene(t, Policy{Fields: Fields{Drop: []string{"status"}}, Changed: "values", Before: "full"})
	s.shapeChanges(addedWith(newObject("1", `"left out"`)))
	got := s.shapeChanges(updatedTo(deployment, newObject("2", `"left out as well"`)))[0]
	if all := fmt.Sprintf("%s%s%s", got.Before, got.After, got.Changed); strings.Contains(all, "left") {
		t.Error(all)
	}
	if !strings.Contains(string(s.bodies["n/a"].Raw), "left out as well") {
		t.Error("the stored state is incomplete")
	}
	if want := `[{"path":"/spec","from":1,"to":2},{"path":"/metadata/resourceVersion","from":"11","to":"19"}]`; string(got.Changed) != want {
		t.Errorf("changed is %s", got.Changed)
	}
}

func TestControlRecordsPass(t *testing.T) {
	s := newScene(t, Policy{Filter: `change.name == "other"`, Before: "full", OnlyIfChanged: []string{"spec"}})
	gap := &event.Change{Type: event.Gap, Resource: deployment, Gap: &event.GapInfo{}}
	if got := s.shapeChanges(gap, addedWith(newObject("1", "1"))); len(got) != 1 || got[0] != gap {
		t.Errorf("%v", got)
	}
}
