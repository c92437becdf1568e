package delivery

import (
	"reflect"
	"testing"
	"testing/synctest"

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
			want: event.Cursor{Low: 10, High: 90, Lanes: map[string]uint64{"a1": 50, "b1": 10}, Layout: "l", Resending: 95},
		},
		"of a lane that is not due": {
			lost: sinks.LostError{From: 10, Lanes: map[sinks.Lane]uint64{"c1": 10}}, cursor: cursor,
			want: event.Cursor{Low: 10, High: 90, Lanes: map[string]uint64{"a1": 50, "b1": 60, "c1": 10}, Layout: "l", Resending: 95},
		},
		"of a lane whose objects are due in another": {
			lost: sinks.LostError{From: 10, Lanes: map[sinks.Lane]uint64{"a2": 10}}, cursor: cursor, want: event.Cursor{Low: 10, Layout: "l", Resending: 95},
		},
		"of every lane": {lost: sinks.LostError{From: 10}, cursor: cursor, want: event.Cursor{Low: 10, Layout: "l", Resending: 95}},
		"of more than is kept": {
			lost: sinks.LostError{From: 10, Messages: 25, Gone: 3, Lanes: map[sinks.Lane]uint64{"b1": 10}}, cursor: cursor, kept: 40, missing: 28,
			want: event.Cursor{Low: 40, High: 90, Lanes: map[string]uint64{"a1": 50, "b1": 40}, Layout: "l", Resending: 95},
		},
	} {
		got, missing := Rewind(&c.lost, c.cursor, c.kept, 95, fencedByFirst{})
		if !reflect.DeepEqual(got, c.want) || missing != c.missing {
			t.Errorf("a loss %s: %+v, %d missing", name, got, missing)
		}
	}
}

// What a destination holds behind a loss says nothing about what it lost: until everything from there on is sent again, also
// the next process skips nothing.
func TestTheNextProcessSendsAgainWhatIsLeftOfALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records, stored, got := changesIn("a", "a", "a", "a", "a"), &storedProgress{}, &laneRecorder{}
		deliver := func(start event.Cursor, upTo uint64) event.Cursor {
			cfg := Config{AlreadyDelivered: func(sinks.Lane, *event.Change) bool { return true }}
			p := startPipeline(t, acceptAll(got), journalOf(records[:upTo], stored), start, cfg)
			p.drainUpTo(t, upTo)
			cursor, _ := stored.currentProgress()
			return cursor
		}
		back, _ := Rewind(&sinks.LostError{From: 1}, event.Cursor{Low: 4}, 0, 4, sinkFuncs{})
		halfway := deliver(back, 3)
		over := deliver(halfway, 4)
		deliver(over, 5)
		got.wantLanes(t, "map[a:[2 3 4]]")
		if halfway.Resending != 4 || over.Resending != 0 {
			t.Errorf("it is sent again until %d, then until %d", halfway.Resending, over.Resending)
		}
	})
}
