package deltas

import (
	"context"
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// A resource that moves to another version is told in terms of what each body is written in.
func TestAChangeIsToldInTheVersionOfItsBody(t *testing.T) {
	var told []*event.Change
	q := NewQueue(config(func(_ context.Context, o Observation) error { told = append(told, o.Changes...); return nil }))
	pop := func() {
		t.Helper()
		if _, err := q.fifo.Pop(func(obj any, _ bool) error { return q.process(t.Context(), obj.(cache.Deltas)) }); err != nil {
			t.Fatal(err)
		}
	}
	beta, v1 := event.Resource{Resource: "pods", Version: "v1beta1"}, event.Resource{Resource: "pods", Version: "v1"}
	add := func(rv string, r *event.Resource) {
		t.Helper()
		o := pod("a", rv)
		o.Resource = r
		if err := q.Add(o); err != nil {
			t.Fatal(err)
		}
		pop()
	}
	add("1", &beta)
	q.MoveTo(v1)
	add("2", &beta) // the connection of before
	add("3", &v1)
	add("4", nil)
	for i, want := range []string{"v1beta1", "v1beta1", "v1", "v1"} {
		if got := told[i].Resource.Version; got != want {
			t.Errorf("change %d is told as %q, want %q", i, got, want)
		}
	}
}

// Of an object that is read as metadata alone nobody knows what else changed.
func TestMetadataAloneDoesNotSayWhatChanged(t *testing.T) {
	whole := func(spec uint64) string { return string(AppendParts(nil, Parts{Metadata: 1, Rest: spec})) }
	bare := func(deleting bool) string {
		return string(AppendParts(nil, Parts{Metadata: 1, Rest: 9, Bare: true, Deleting: deleting}))
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
