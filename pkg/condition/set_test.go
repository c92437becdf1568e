package condition_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// TestAFaultOfAllIsThreeLines has 180 members whose connections end together, who then find the port closed, each at its own
// next attempt, and who come back when their back-off lets them.
func TestAFaultOfAllIsThreeLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		set := condition.NewSet(logTo(&log), "resources")
		members := map[string]*condition.Condition{}
		for n := range 180 {
			name := fmt.Sprintf("r%03d", n)
			members[name] = set.Add(name, starting)
			members[name].Become(works, "", "")
		}
		time.Sleep(time.Minute)
		for _, c := range members {
			go func() {
				c.Become(away, "EOF", "")
				wait := 100 * time.Millisecond
				for down := time.Now().Add(30 * time.Second); time.Now().Before(down); wait = min(2*wait, 15*time.Second) {
					time.Sleep(wait/2 + rand.N(wait/2))
					c.Become(away, "connection refused", "is the API server up?")
				}
				c.Become(works, "", "")
			}()
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		lines := log.lines()
		if len(lines) < 3 || len(lines) > 4 { // the first is of the start
			t.Errorf("%d lines: %q", len(lines), lines)
		}
		if lines[0] != `level=INFO msg=delivers state=ready resources="r000, r001, r002 and 177 more"` {
			t.Errorf("the first line is %s", lines[0])
		}
		set.Close()
	})
}

func TestAMomentOfTroubleIsNoLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		set := condition.NewSet(logTo(&log), "resources")
		defer set.Close()
		pods := set.Add("pods", works)
		pods.Become(away, "EOF", "")
		time.Sleep(100 * time.Millisecond)
		pods.Become(works, "", "")
		time.Sleep(time.Minute)
		expect(t, &log)
	})
}

func TestEachMemberThatFallsIllLaterHasItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		set := condition.NewSet(logTo(&log), "resources")
		defer set.Close()
		pods, nodes, gone := set.Add("pods", works), set.Add("nodes", works), set.Add("gone", works)
		pods.Become(away, "forbidden", "")
		time.Sleep(time.Minute)
		nodes.Become(away, "forbidden", "", "position", 7)
		gone.Become(away, "forbidden", "")
		set.Remove("gone")
		gone.Become(works, "", "")
		time.Sleep(time.Minute)
		nodes.Become(works, "", "")
		time.Sleep(time.Minute)
		expect(t, &log,
			`level=WARN msg="does not deliver" state=away reason=forbidden resources=pods`,
			`level=WARN msg="does not deliver" state=away reason=forbidden resources=nodes position=7`,
			`level=INFO msg=delivers state=ready lasted=1m0s resources=nodes`,
		)
	})
}

func TestCloseWritesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		set := condition.NewSet(logTo(&log), "resources")
		set.Add("pods", works).Become(away, "forbidden", "")
		set.Close()
		expect(t, &log, `level=WARN msg="does not deliver" state=away reason=forbidden resources=pods`)
		time.Sleep(time.Minute)
		expect(t, &log, `level=WARN msg="does not deliver" state=away reason=forbidden resources=pods`)
	})
}

// slowly is a log that takes a minute for each line.
type slowly struct{ journal }

func (s *slowly) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return s.journal.Write(p)
}

// TestCloseWaitsForWhatAnotherWrites closes a set whose timer has begun to write, with one more line that waits.
func TestCloseWaitsForWhatAnotherWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log slowly
		set := condition.NewSet(logTo(&log), "resources")
		set.Add("pods", works).Become(away, "forbidden", "")
		time.Sleep(2 * time.Second)
		set.Add("nodes", works).Become(away, "refused", "")
		set.Close()
		expect(t, &log.journal,
			`level=WARN msg="does not deliver" state=away reason=forbidden resources=pods`,
			`level=WARN msg="does not deliver" state=away reason=refused resources=nodes`,
		)
	})
}

// TestWhoLostItsNameIsNotHeard is what happens, too, to one that changes in the moment in which it is removed.
func TestWhoLostItsNameIsNotHeard(t *testing.T) {
	var log journal
	set := condition.NewSet(logTo(&log), "resources")
	before := set.Add("pods", works)
	set.Add("pods", works)
	before.Become(away, "forbidden", "")
	set.Close()
	expect(t, &log)
}

func TestARemovedMemberLeavesItsNameToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		set := condition.NewSet(logTo(&log), "resources")
		defer set.Close()
		set.Add("pods", starting).Become(away, "forbidden", "")
		set.Remove("pods")
		set.Add("pods", starting).Become(works, "", "")
		time.Sleep(time.Minute)
		expect(t, &log, `level=INFO msg=delivers state=ready resources=pods`)
	})
}

// TestWhatHappensToManyIsOneLine has 180 members that lose something at positions of their own, and work on at once.
func TestWhatHappensToManyIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		set := condition.NewSet(logTo(&log), "resources")
		defer set.Close()
		lost := condition.State{Name: "lost", Message: "history was lost", Level: slog.LevelWarn}
		for n := range 180 {
			name := fmt.Sprintf("r%03d", n)
			c := set.Add(name, works)
			set.Happened(name, lost, fmt.Sprintf("too old: %d", 1000+n), "from", n)
			c.Become(away, "reading", "")
			c.Become(works, "", "")
		}
		time.Sleep(time.Minute)
		set.Happened("pods", lost, "too old: 9", "from", 8)
		time.Sleep(time.Minute)
		expect(t, &log,
			`level=WARN msg="history was lost" state=lost reason="too old: 1000" resources="r000, r001, r002 and 177 more"`,
			`level=WARN msg="history was lost" state=lost reason="too old: 9" resources=pods from=8`,
		)
	})
}
