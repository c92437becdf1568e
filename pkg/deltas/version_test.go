package deltas

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

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
