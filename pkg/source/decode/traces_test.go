package decode

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// emitVersions passes versions of one object, as the API server writes them, to a tracker, and returns the last change.
func emitVersions(t *testing.T, versions ...string) *event.Change {
	t.Helper()
	tracker := deltas.NewTracker(deltas.Scope{}, deltas.NewKnownSet(), nil, time.Now)
	var last *event.Change
	for i, v := range versions {
		o, err := readObject(strings.Replace(v, `"metadata":{`, fmt.Sprintf(`"metadata":{"name":"a","uid":"u","resourceVersion":"%d",`, i+1), 1))
		if err != nil {
			t.Fatal(err)
		}
		typ := watch.Modified
		if i == 0 {
			typ = watch.Added
		}
		observed, err := tracker.ObserveEvents([]deltas.Event{{Type: typ, Object: o}}, o.ResourceVersion)
		if err != nil || len(observed.Changes) != 1 {
			t.Fatalf("%d changes, %v", len(observed.Changes), err)
		}
		last = observed.Changes[0]
	}
	return last
}

func TestClassIsTheChangedPart(t *testing.T) {
	const base = `{"kind":"Pod","apiVersion":"v1","metadata":{"generation":1,"labels":{"a":"1"},"managedFields":[{"manager":"m"}]},"spec":{"n":1},"status":{"n":1}}`
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(base) }
	for name, c := range map[string]struct {
		next string
		want event.Class
	}{
		"spec":                     {replace(`"spec":{"n":1}`, `"spec":{"n":2}`), event.ClassSpec},
		"spec and status":          {replace(`"n":1`, `"n":2`), event.ClassSpec},
		"a member beside the spec": {replace(`"spec"`, `"data":{},"spec"`), event.ClassSpec},
		"status":                   {replace(`"status":{"n":1}`, `"status":{"n":2}`), event.ClassStatus},
		"status is gone":           {replace(`,"status":{"n":1}`, ``), event.ClassStatus},
		"status and labels":        {replace(`"status":{"n":1}`, `"status":{"n":2}`, `"a":"1"`, `"a":"2"`), event.ClassStatus},
		"labels":                   {replace(`"a":"1"`, `"a":"2"`), event.ClassMetadata},
		"annotations":              {replace(`"labels"`, `"annotations":{"b":"1"},"labels"`), event.ClassMetadata},
		"finalizers":               {replace(`"labels"`, `"finalizers":["f"],"labels"`), event.ClassMetadata},
		"generation and spec":      {replace(`"generation":1`, `"generation":2`, `"spec":{"n":1}`, `"spec":{"n":2}`), event.ClassSpec},
		"bookkeeping alone":        {replace(`{"manager":"m"}`, `{"manager":"n"}`), event.ClassMetadata},
		"deletion":                 {replace(`"labels"`, `"deletionTimestamp":"2026-01-02T03:04:05Z","labels"`, `"n":1`, `"n":2`), event.ClassDeleting},
		"deletion that is null":    {replace(`"labels"`, `"deletionTimestamp":null,"labels"`), event.ClassMetadata},
		"no kind, as in a list":    {replace(`"kind":"Pod","apiVersion":"v1",`, ``), event.ClassMetadata},
	} {
		if got := emitVersions(t, base, c.next).Class; got != c.want {
			t.Errorf("%s: class %q, want %q", name, got, c.want)
		}
	}
	if c := emitVersions(t, base); c.Class != "" {
		t.Errorf("%s has class %q", c.Type, c.Class)
	}
	deleting := replace(`"labels"`, `"deletionTimestamp":"2026-01-02T03:04:05Z","labels"`)
	if got := emitVersions(t, deleting, strings.Replace(deleting, `"a":"1"`, `"a":"2"`, 1)).Class; got != event.ClassMetadata {
		t.Errorf("an update of an object that is being deleted has class %q", got)
	}
}

func TestActorIsDerivedFromManagedFields(t *testing.T) {
	entry := func(manager string, second int, fields ...string) string {
		s := fmt.Sprintf(`{"manager":%q,"operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:%02dZ","fieldsType":"FieldsV1","fieldsV1":{`, manager, second)
		for i, f := range fields {
			if i > 0 {
				s += ","
			}
			s += fmt.Sprintf(`"f:%s":{}`, f)
		}
		return s + `}}`
	}
	sub := func(entry, subresource string) string {
		return strings.TrimSuffix(entry, "}") + `,"subresource":"` + subresource + `"}`
	}
	untimed := func(entry string) string { return strings.Replace(entry, `"time":"2026-01-02T03:04:00Z",`, "", 1) }
	version := func(n int, entries ...string) string {
		return fmt.Sprintf(`{"metadata":{"managedFields":[%s]},"spec":{"n":%d}}`, strings.Join(entries, ","), n)
	}
	a5, b5 := entry("a", 5, "x", "y"), entry("b", 5, "z")
	many := func(second int) (all []string) {
		for i := range maxWriters {
			all = append(all, entry(fmt.Sprint("m", i), 0, "x"))
		}
		return append(all, entry("last", second, "x"))
	}
	for name, c := range map[string]struct {
		was, is []string
		want    string // manager and subresource; "" for none
	}{
		"a later write":                      {[]string{a5, b5}, []string{entry("a", 6, "x", "y"), b5}, "a"},
		"a new manager":                      {[]string{a5}, []string{a5, b5}, "b"},
		"the same manager through status":    {[]string{a5}, []string{a5, sub(entry("a", 5, "s"), "status")}, "a/status"},
		"took a field in the same second":    {[]string{a5, b5}, []string{entry("a", 5, "x"), entry("b", 5, "y", "z")}, "b"},
		"took all there was":                 {[]string{a5, b5}, []string{entry("a", 5, "x", "y", "z")}, "a"},
		"gave up fields, later":              {[]string{a5, b5}, []string{entry("a", 6, "x"), b5}, "a"},
		"gave up fields in the same second":  {[]string{a5, b5}, []string{entry("a", 5, "x"), b5}, ""},
		"an entry is gone":                   {[]string{a5, b5}, []string{a5}, ""},
		"no trace":                           {[]string{a5, b5}, []string{a5, b5}, ""},
		"scale, which has no time":           {[]string{a5}, []string{entry("a", 5, "x"), untimed(sub(entry("s", 0, "y"), "scale"))}, "s/scale"},
		"scale again":                        {[]string{a5, untimed(sub(entry("s", 0, "y"), "scale"))}, []string{a5, untimed(sub(entry("s", 0, "y"), "scale"))}, ""},
		"others keep what they had in order": {[]string{a5, b5}, []string{b5, entry("a", 6, "x", "y")}, "a"},
		"two have been renewed":              {[]string{a5, b5}, []string{entry("a", 6, "x"), entry("b", 6, "z")}, ""},
		"old managers were put together":     {[]string{a5, b5}, []string{entry("ancient-changes", 5, "x", "z"), entry("c", 6, "y")}, "c"},
		"the first apply":                    {nil, []string{entry("before-first-apply", 6, "x"), entry("k", 6, "y")}, "k"},
		"more than are kept apart":           {many(1), many(2), ""},
		"of an odd kind":                     {[]string{a5, `7`}, []string{entry("a", 6, "x", "y"), `[[]]`}, ""},
	} {
		got := ""
		if a := emitVersions(t, version(1, c.was...), version(2, c.is...)).Actor; a != nil {
			if got = a.Manager; a.Subresource != "" {
				got += "/" + a.Subresource
			}
		}
		if got != c.want {
			t.Errorf("%s: actor %q, want %q", name, got, c.want)
		}
	}
}

func TestCreatorIsTheActor(t *testing.T) {
	one := `{"manager":"a\u0022","operation":"Apply","time":"2026-01-02T03:04:05Z","fieldsV1":{}}`
	c := emitVersions(t, `{"metadata":{"managedFields":[`+one+`]}}`)
	if want := (event.Actor{Manager: `a"`, Operation: "Apply", Time: "2026-01-02T03:04:05Z"}); c.Type != event.Added || c.Actor == nil || *c.Actor != want {
		t.Errorf("%s by %+v, want %+v", c.Type, c.Actor, want)
	}
	if c := emitVersions(t, `{"metadata":{"managedFields":[`+one+`,{"manager":"b"}]}}`); c.Actor != nil {
		t.Errorf("an ambiguous creator was reported: %+v", c.Actor)
	}
	if c := emitVersions(t, `{"metadata":{"labels":{}}}`); c.Actor != nil {
		t.Errorf("an unknown creator was reported: %+v", c.Actor)
	}
}
