package history

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
)

func TestMomentsAreTimesAgesAndVersions(t *testing.T) {
	zone := time.FixedZone("z", 3600)
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, zone)
	for text, want := range map[string]Moment{
		"2026-01-02T03:04:05Z":      {Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		"2026-01-02T03:04:05.5Z":    {Time: time.Date(2026, 1, 2, 3, 4, 5, 5e8, time.UTC)},
		"2026-01-02T03:04:05+02:00": {Time: time.Date(2026, 1, 2, 1, 4, 5, 0, time.UTC)},
		"2026-01-02":                {Time: time.Date(2026, 1, 2, 0, 0, 0, 0, zone)},
		"2026-01-02T03:04":          {Time: time.Date(2026, 1, 2, 3, 4, 0, 0, zone)},
		"07:00":                     {Time: time.Date(2026, 5, 6, 7, 0, 0, 0, zone)},
		"07:09:30":                  {Time: time.Date(2026, 5, 5, 7, 9, 30, 0, zone)},
		"90m":                       {Time: now.Add(-90 * time.Minute)},
		"3d":                        {Time: now.Add(-72 * time.Hour)},
		"now":                       {Time: now},
		"4711":                      {Version: "4711"},
		"rv:18446744073709551616":   {Version: "18446744073709551616"},
	} {
		if got, err := ParseMoment(text, now); err != nil || !got.Time.Equal(want.Time) || got.Version != want.Version {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "noon", "-5m", "25:00", "rv:", "rv:07", "2026-13-01", "d", "1.5d"} {
		if got, err := ParseMoment(text, now); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func TestTypesAreNamedAsKubectlTakesThem(t *testing.T) {
	for name, want := range map[string]string{
		"po": "pods", "Pod": "pods", "pods": "pods", "deploy": "deployments.apps", "deployments.apps": "deployments.apps",
		"deployment.v1.apps": "deployments.apps", "hpa": "horizontalpodautoscalers.autoscaling", "ev": "events", "pods.core": "pods",
		"netpol": "networkpolicies.networking.k8s.io", "deploy.extensions": "", "pods.apps": "", "": "",
	} {
		got := ""
		for _, b := range builtIn {
			if b.matches(name) {
				got = b.String()
			}
		}
		if got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// TestTypesOfCustomResourcesAreThoseOfTheRows with the short names that their definitions give them.
func TestTypesOfCustomResourcesAreThoseOfTheRows(t *testing.T) {
	w := newWorld(t, 1)
	crds := history.Facts{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions", Kind: "CustomResourceDefinition",
		Type: "added", Name: "widgets.example.com", UID: "u", ResourceVersion: "5"}
	w.write(history.Row{Facts: crds, Object: `{"spec":{"group":"example.com","names":{"plural":"widgets","singular":"widget","kind":"Widget","shortNames":["wg"]}}}`})
	w.write(history.Row{Facts: history.Facts{Group: "example.org", Resource: "gadgets", Kind: "Gadget", Type: "snapshot.begin"}})
	w.flush()
	h := w.open()
	for name, want := range map[string]string{"wg": "widgets.example.com", "Widget": "widgets.example.com", "gadget": "gadgets.example.org", "wgs": ""} {
		got := ""
		if r, err := ResolveType(t.Context(), h, name); err == nil {
			got = r.String()
		}
		if got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// TestFollowPassesWhatIsWrittenLater, and an author that comes after its change.
func TestFollowPassesWhatIsWrittenLater(t *testing.T) {
	w := newWorld(t, 2)
	first := w.change(resources[0])
	w.write(w.stateRow("added", resources[0], first))
	w.flush()
	h := w.open()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	author := w.stateRow("attributed", resources[0], first)
	author.Object, author.User = "", "alice"
	later := history.Row{Facts: first.facts(resources[0])}
	later.Type, later.ResourceVersion = "deleted", "900"
	next := []history.Row{later, author}
	write := func() error {
		w.write(next[0])
		w.flush()
		next = next[1:]
		return nil
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	var got []string
	done := errors.New("done")
	err := Follow(ctx, w.dir, h, LogOptions{}, func(e *Entry) error {
		if got = append(got, e.Type+" "+e.User); len(next) == 0 {
			return done
		}
		return write()
	})
	if !errors.Is(err, done) || len(got) != 2 || got[0] != "deleted " || got[1] != "attributed alice" {
		t.Errorf("%v, %v", got, err)
	}
}

func (v truth) facts(r event.Resource) history.Facts {
	return history.Facts{Group: r.Group, Version: r.Version, Resource: r.Resource, Kind: r.Kind, Namespace: v.key.Namespace, Name: v.key.Name, UID: v.uid}
}
