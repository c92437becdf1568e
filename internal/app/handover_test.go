package app

import (
	"strings"
	"testing"
	"time"
)

func TestStandbyTakesOverOnlyIfItReachesStrictlyMore(t *testing.T) {
	for _, c := range []struct {
		offer, reached string
		want           bool
	}{
		{"reaches:", "", false}, {"reaches:", "bus", true}, {"reaches:bus", "bus", false}, {"reaches:bus", "bus hook", true},
		{"reaches:bus", "hook", false}, {"reaches:bus", "hook other", false}, {"reaches:bus,hook", "bus", false},
		{"reaches:bus,hook", "bus hook other", true}, {"true", "bus", false},
	} {
		if got := surpasses(strings.Fields(c.reached), c.offer); got != c.want {
			t.Errorf("a standby that reaches %q accepts %q: %v", c.reached, c.offer, got)
		}
	}
}

func TestSinkIsOverdueOnceItHasFailedForTheWholeTime(t *testing.T) {
	since := map[string]time.Time{"bus": time.Now().Add(-time.Minute), "mended": time.Now().Add(-time.Minute)}
	late := overdue(since, map[string]string{"bus": "away", "new": "away"}, 30*time.Second)
	if len(late) != 1 || late["bus"] != "away" || len(since) != 2 || since["new"].IsZero() {
		t.Errorf("late %v, failing since %v", late, since)
	}
}
