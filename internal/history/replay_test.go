package history

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/history"
)

// TestAReplayEndsInTheStateOfItsLastMoment plays random histories from random moments on: what it passes, applied to the
// state of the first moment, is the state of the last one.
func TestAReplayEndsInTheStateOfItsLastMoment(t *testing.T) {
	played := 0
	for seed := range uint64(4) {
		w := newWorld(t, seed)
		w.run(120, seed%4 > 0)
		h := w.open()
		for range 8 {
			from, until := w.moment(), w.moment()
			if from.Version != "" {
				until = Moment{Version: fmt.Sprint(w.version)}
			} else if until.Version != "" || until.Time.Before(from.Time) {
				until = h.OrNewest(Moment{})
			}
			played += replayOnce(t, h, fmt.Sprintf("seed %d, %s to %s", seed, from, until), from, until)
		}
	}
	if played < 500 {
		t.Errorf("only %d rows were played", played)
	}
}

// TestAReplayShowsNoVersionInPart plays random histories whose rows were read late, were written by object and have bounds
// for times: behind all steps of a time, what is not unknown of a resource is its state at the highest version.
func TestAReplayShowsNoVersionInPart(t *testing.T) {
	compared := 0
	for seed := range uint64(4) {
		w := newWorld(t, seed)
		w.lags = true
		w.run(200, seed%3 > 0)
		h := w.open()
		for i := range 8 {
			from, until := w.truth[w.rnd.IntN(len(w.truth))].version, w.truth[w.rnd.IntN(len(w.truth))].version
			m := h.OrNewest(Moment{})
			if i%2 == 0 {
				m = Moment{Version: fmt.Sprint(max(from, until))}
			}
			compared += showOnce(t, w, h, fmt.Sprint("seed ", seed), Moment{Version: fmt.Sprint(min(from, until))}, m)
		}
	}
	if compared < 1000 {
		t.Errorf("only %d states were compared", compared)
	}
}

// showOnce plays a history from a moment to another one.
func showOnce(t *testing.T, w *world, h *History, name string, from, until Moment) (compared int) {
	t.Helper()
	newest, position := map[history.Key]int64{}, map[string]string{}
	for _, r := range resources {
		position[r.Resource] = from.Version
	}
	start := from
	state := stateAt(t, h, from, func(row *history.Row) {
		newest[row.Key()] = row.Sequence
		if row.Time().After(start.Time) {
			start.Time = row.Time()
		}
	})
	doubt, err := h.DoubtAt(t.Context(), Scope{}, start)
	if err != nil {
		t.Fatal(err)
	}
	look := func(after time.Time) {
		for _, r := range resources {
			if len(doubt.About(history.Key{Group: r.Group, Resource: r.Resource}).Unknown) > 0 {
				continue
			}
			compared++
			var got []string
			for key, version := range state {
				if key.Resource == r.Resource {
					got = append(got, fmt.Sprintf("%s/%s@%s", key.Namespace, key.Name, version))
				}
			}
			slices.Sort(got)
			if want, _ := w.stateOf(r.Resource, Moment{Version: position[r.Resource]}); !slices.Equal(got, want) {
				t.Fatalf("%s from %s to %s: %s after %s, at %s, is\n%v\nwant\n%v", name, from, until, r, after, position[r.Resource], got, want)
			}
		}
	}
	now := start.Time
	for steps, err := range Replay(t.Context(), h, "c", doubt, start, until) {
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range steps {
			if s.Time.After(now) {
				look(now)
			}
			if now = s.Time; s.Row == nil {
				for _, u := range doubt.Unknown {
					if !u.To.IsZero() && !u.To.After(now) { // it has ended
						position[u.Resource.Resource] = highest(position[u.Resource.Resource], u.ToVersion)
					}
				}
				doubt = *s.Doubt
				continue
			}
			position[s.Row.Resource] = highest(position[s.Row.Resource], s.Row.ResourceVersion)
			apply(state, newest, s)
		}
	}
	look(now)
	return compared
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
	now, last := from.Time, Step{}
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
