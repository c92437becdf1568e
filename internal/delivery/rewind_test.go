package delivery

import (
	"reflect"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// fencedByFirst is a sink of which lanes share objects that have the same first letter.
type fencedByFirst struct{ sinks.Fenced }

func (fencedByFirst) SharesObjects(a, b sinks.Lane) bool { return a[0] == b[0] }

// Only lanes that have lost something go back. While other lanes are due that may have their objects, all do.
func TestALossTakesBackWhatItConcerns(t *testing.T) {
	t.Parallel()
	cursor := event.Cursor{Low: 50, High: 90, Lanes: map[string]uint64{"a1": 50, "b1": 60}, Layout: "l"}
	for name, c := range map[string]struct {
		lost    sinks.LostError
		cursor  event.Cursor
		kept    uint64
		want    event.Cursor
		missing uint64
	}{
		"of a lane that is due": {
			lost: sinks.LostError{From: 10, Lanes: map[sinks.Lane]uint64{"b1": 10}}, cursor: cursor,
			want: event.Cursor{Low: 10, High: 90, Lanes: map[string]uint64{"a1": 50, "b1": 10}, Layout: "l"},
		},
		"of a lane that is not due": {
			lost: sinks.LostError{From: 10, Lanes: map[sinks.Lane]uint64{"c1": 10}}, cursor: cursor,
			want: event.Cursor{Low: 10, High: 90, Lanes: map[string]uint64{"a1": 50, "b1": 60, "c1": 10}, Layout: "l"},
		},
		"of a lane whose objects are due in another": {
			lost: sinks.LostError{From: 10, Lanes: map[sinks.Lane]uint64{"a2": 10}}, cursor: cursor, want: event.Cursor{Low: 10, Layout: "l"},
		},
		"of every lane": {lost: sinks.LostError{From: 10}, cursor: cursor, want: event.Cursor{Low: 10, Layout: "l"}},
		"of more than is kept": {
			lost: sinks.LostError{From: 10, Messages: 25, Gone: 3, Lanes: map[sinks.Lane]uint64{"b1": 10}}, cursor: cursor, kept: 40, missing: 28,
			want: event.Cursor{Low: 40, High: 90, Lanes: map[string]uint64{"a1": 50, "b1": 40}, Layout: "l"},
		},
	} {
		got, missing := Rewind(&c.lost, c.cursor, c.kept, fencedByFirst{})
		if !reflect.DeepEqual(got, c.want) || missing != c.missing {
			t.Errorf("a loss %s: %+v, %d missing", name, got, missing)
		}
	}
}
