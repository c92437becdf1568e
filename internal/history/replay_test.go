package history

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/history"
)

// TestAReplayEndsInTheStateOfItsLastMoment plays random histories from random moments on: what it passes, applied to the
// state of the first moment, is the state of the last one, and the rows of a resource come in their order.
func TestAReplayEndsInTheStateOfItsLastMoment(t *testing.T) {
	played := 0
	for seed := range uint64(4) {
		w := newWorld(t, seed)
		w.run(120, seed%4 > 0)
		h, err := Open(w.dir)
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			from, until := w.moment(), w.moment()
			if from.Version != "" {
				until = Moment{Version: fmt.Sprint(w.version)}
			} else if until.Version != "" || until.Time.Before(from.Time) {
				until = h.OrNewest(Moment{})
			}
			played += replayOnce(t, h, fmt.Sprintf("seed %d, %s to %s", seed, from, until), from, until)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if played < 500 {
		t.Errorf("only %d rows were played", played)
	}
}

// stateAt returns the versions of the objects that existed at a moment.
func stateAt(t *testing.T, h *History, m Moment, pass func(*history.Row)) map[history.Key]string {
	t.Helper()
	state := map[history.Key]string{}
	err := h.Objects(t.Context(), Scope{}, m, func(row *history.Row) error {
		state[row.Key()] = row.ResourceVersion
		pass(row)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func replayOnce(t *testing.T, h *History, name string, from, until Moment) (played int) {
	t.Helper()
	newest := map[history.Key]int64{} // sequences
	state := stateAt(t, h, from, func(row *history.Row) {
		newest[row.Key()] = row.Sequence
		if row.Time().After(from.Time) && from.Version != "" {
			from.Time = row.Time()
		}
	})
	doubt, err := h.DoubtAt(t.Context(), Scope{}, from)
	if err != nil {
		t.Fatal(err)
	}
	now, order, last := from.Time, map[string]int64{}, Step{}
	for steps, err := range Replay(t.Context(), h, "c", doubt, from, until) {
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			if s.Time.Before(now) {
				t.Fatalf("%s: %s comes after %s", name, s.Time, now)
			}
			now, last = s.Time, s
			if s.Row == nil {
				continue
			}
			played++
			if s.Row.Type != "snapshot" && s.Row.Type != "sync" {
				if s.Row.Sequence <= order[s.Row.Resource] {
					t.Fatalf("%s: row %d comes after %d", name, s.Row.Sequence, order[s.Row.Resource])
				}
				order[s.Row.Resource] = s.Row.Sequence
			}
			if s.Time.After(s.Row.Time()) && s.Row.Time().After(from.Time) {
				t.Fatalf("%s: row %d of %s comes at %s", name, s.Row.Sequence, s.Row.Time(), s.Time)
			}
			apply(state, newest, s)
		}
	}
	if want := stateAt(t, h, until, func(*history.Row) {}); !maps.Equal(state, want) {
		t.Fatalf("%s: it ends in\n%v\nwant\n%v", name, state, want)
	}
	want, err := h.DoubtAt(t.Context(), Scope{}, until)
	if err != nil {
		t.Fatal(err)
	}
	if last.Doubt == nil || !slices.Equal(last.Doubt.Lines(), want.Lines()) {
		t.Fatalf("%s: %v is not known at the end, want %v", name, last.Doubt, want)
	}
	return played
}

// apply takes what a step says.
func apply(state map[history.Key]string, newest map[history.Key]int64, s Step) {
	row := s.Row
	switch key := row.Key(); {
	case row.Name != "" && row.Sequence < newest[key]:
	case row.Name == "":
		maps.DeleteFunc(state, func(k history.Key, _ string) bool {
			return k.Group == row.Group && k.Resource == row.Resource && (row.Namespace == "" || k.Namespace == row.Namespace) && newest[k] < s.Begun
		})
	case row.IsEnd():
		newest[key] = row.Sequence
		delete(state, key)
	default:
		newest[key], state[key] = row.Sequence, row.ResourceVersion
	}
}
