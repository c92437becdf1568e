package deltas

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestAChangeIsEmittedInTheVersionOfItsBody: while a resource moves to another version, each change carries the version of
// its body.
func TestAChangeIsEmittedInTheVersionOfItsBody(t *testing.T) {
	beta, v1 := event.Resource{Resource: "pods", Version: "v1beta1"}, event.Resource{Resource: "pods", Version: "v1"}
	known := NewKnownSet()
	known.Add(newPod("b", "1").toKnown())
	s := podScope
	s.Resource = beta
	tr := NewTracker(s, known, nil, time.Now)
	emit := func(rv string, r *event.Resource) *event.Change {
		t.Helper()
		o := newPod("a", rv)
		o.Resource = r
		return mustObserve(t)(tr.ObserveEvents([]Event{{watch.Modified, o}}, rv)).Changes[0]
	}
	check := func(what string, c *event.Change, want string) {
		t.Helper()
		if got := c.Resource.Version; got != want {
			t.Errorf("%s is emitted as %q, want %q", what, got, want)
		}
	}
	check("at first", emit("2", nil), "v1beta1")
	tr.SetResource(v1)
	check("from the connection of before", emit("3", &beta), "v1beta1")
	check("from the new one", emit("4", &v1), "v1")
	check("of neither", emit("5", nil), "v1")

	if o := tr.NewObservation(); o.Resource != v1 {
		t.Errorf("known objects belong to %+v, want %+v", o.Resource, v1)
	}
	check("a gap", tr.NewGap("1", "2", "a test"), "v1")
	check("the beginning of a snapshot", tr.NewSnapshotBegin("S"), "v1")
	tr.StartList(List{Snapshot: &event.SnapshotInfo{ID: "S"}})
	mustObserve(t)(tr.ObserveEvents(addedEvents(newPod("a", "5")), ""))
	gone, _, err := tr.ObserveMissing()
	if err != nil {
		t.Fatal(err)
	}
	check("what is only known", gone.Changes[0], "v1")
	check("the end of a snapshot", tr.FinishList("6").Changes[0], "v1")
}

// TestMetadataOnlySummariesGiveNoClass: if only metadata is read, changes of other parts are not visible.
func TestMetadataOnlySummariesGiveNoClass(t *testing.T) {
	whole := func(spec uint64) string { return string(AppendParts(nil, Parts{Metadata: 1, Rest: spec})) }
	bare := func(deleting bool) string {
		return string(AppendParts(nil, Parts{Metadata: 1, Rest: 9, MetadataOnly: true, Deleting: deleting}))
	}
	for name, c := range map[string]struct {
		was, is string
		want    event.Class
	}{
		"whole":                     {whole(1), whole(2), event.ClassSpec},
		"bare":                      {bare(false), bare(false), ""},
		"bare, and is to be gone":   {bare(false), bare(true), event.ClassDeleting},
		"was whole":                 {whole(1), bare(false), ""},
		"is whole":                  {bare(false), whole(1), ""},
		"read before, without sums": {"", bare(false), ""},
	} {
		if got := classOf(c.was, c.is); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
