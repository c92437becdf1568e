package condition_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// TestAFaultOfAllMembersIsLoggedInThreeLines has 180 members: their connections end together, they find the port
// closed, each at its own next attempt, and they recover when their back-off ends.
func TestAFaultOfAllMembersIsLoggedInThreeLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		members := map[string]*condition.Condition{}
		for n := range 180 {
			name := fmt.Sprintf("r%03d", n)
			members[name] = set.Add(name, starting)
			members[name].Update(ready)
		}
		time.Sleep(time.Minute)
		for _, c := range members {
			go func() {
				c.Update(away("EOF"))
				wait := 100 * time.Millisecond
				for down := time.Now().Add(30 * time.Second); time.Now().Before(down); wait = min(2*wait, 15*time.Second) {
					time.Sleep(wait/2 + rand.N(wait/2))
					c.Update(away("connection refused"))
				}
				c.Update(ready)
			}()
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		lines := log.Lines()
		if len(lines) < 3 || len(lines) > 4 { // the first is of the start
			t.Errorf("%d lines: %q", len(lines), lines)
		}
		if lines[0] != `level=INFO msg=connected ended=SinkConnecting lasted=0s resources="r000, r001, r002 and 177 more"` {
			t.Errorf("the first line is %s", lines[0])
		}
		set.Close()
	})
}

func TestABriefFailureIsNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		defer set.Close()
		pods := set.Add("pods", ready)
		pods.Update(away("EOF"))
		time.Sleep(100 * time.Millisecond)
		pods.Update(ready)
		time.Sleep(time.Minute)
		expectLines(t, &log)
	})
}

// TestAnEndIsLoggedOnceUntilSomethingElseIs starts twice without a failure: a destination answered a ping, and then the
// first change takes its time.
func TestAnEndIsLoggedOnceUntilSomethingElseIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "sink", "sinks")
		defer set.Close()
		pods := set.Add("pods", starting)
		for _, p := range []condition.Problem{ready, starting, ready, away("EOF"), ready, starting, ready} {
			pods.Update(p)
			time.Sleep(time.Minute)
		}
		expectLines(t, &log,
			`level=INFO msg=connected ended=SinkConnecting lasted=0s sinks=pods`,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=EOF sinks=pods`,
			`level=INFO msg=delivers ended=SinkUnreachable lasted=1m0s sinks=pods`,
		)
	})
}

func TestEachMemberThatFailsLaterHasItsOwnLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		defer set.Close()
		pods, nodes, gone := set.Add("pods", ready), set.Add("nodes", ready), set.Add("gone", ready)
		pods.Update(away("forbidden"))
		time.Sleep(time.Minute)
		nodes.Update(away("forbidden"), "position", 7)
		gone.Update(away("forbidden"))
		set.Remove("gone")
		gone.Update(ready)
		time.Sleep(time.Minute)
		nodes.Update(ready)
		time.Sleep(time.Minute)
		expectLines(t, &log,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=forbidden resources=pods`,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=forbidden resources=nodes position=7`,
			`level=INFO msg=delivers ended=SinkUnreachable lasted=1m0s resources=nodes`,
		)
	})
}

func TestCloseWritesPendingLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		set.Add("pods", ready).Update(away("forbidden"))
		set.Close()
		expectLines(t, &log, `level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=forbidden resources=pods`)
		time.Sleep(time.Minute)
		expectLines(t, &log, `level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=forbidden resources=pods`)
	})
}

// slowWriter is a log that takes a minute per line.
type slowWriter struct{ logs.Buffer }

func (s *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return s.Buffer.Write(p)
}

// TestCloseWaitsForAConcurrentWriter closes a set while its timer writes and one more line is pending.
func TestCloseWaitsForAConcurrentWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log slowWriter
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		set.Add("pods", ready).Update(away("forbidden"))
		time.Sleep(2 * time.Second)
		set.Add("nodes", ready).Update(away("refused"))
		set.Close()
		expectLines(t, &log.Buffer,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=forbidden resources=pods`,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=refused resources=nodes`,
		)
	})
}

// TestAReplacedMemberIsNotLogged also covers a member that changes while it is being removed.
func TestAReplacedMemberIsNotLogged(t *testing.T) {
	var log logs.Buffer
	set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
	before := set.Add("pods", ready)
	set.Add("pods", ready)
	before.Update(away("forbidden"))
	set.Close()
	expectLines(t, &log)
}

func TestARemovedMembersNameCanBeReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		defer set.Close()
		set.Add("pods", starting).Update(away("forbidden"))
		set.Remove("pods")
		set.Add("pods", starting).Update(ready)
		time.Sleep(time.Minute)
		expectLines(t, &log, `level=INFO msg=connected ended=SinkConnecting lasted=0s resources=pods`)
	})
}

// TestAnEventOfManyMembersIsOneLine has 180 members with the same event at positions of their own, which recover at once.
func TestAnEventOfManyMembersIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		defer set.Close()
		for n := range 180 {
			name := fmt.Sprintf("r%03d", n)
			c := set.Add(name, ready)
			set.ReportEvent(name, condition.HistoryLost, fmt.Sprintf("too old: %d", 1000+n), "from", n)
			c.Update(away("reading"))
			c.Update(ready)
		}
		time.Sleep(time.Minute)
		set.ReportEvent("pods", condition.HistoryLost, "too old: 9", "from", 8)
		time.Sleep(time.Minute)
		expectLines(t, &log,
			`level=WARN msg="history was lost, reading all objects" code=HistoryLost reason="too old: 1000" resources="r000, r001, r002 and 177 more"`,
			`level=WARN msg="history was lost, reading all objects" code=HistoryLost reason="too old: 9" resources=pods from=8`,
		)
	})
}

// TestMembersWithRemediesOfTheirOwnHaveALineEach, while these are few, also if their causes are alike and come one behind
// the other.
func TestMembersWithRemediesOfTheirOwnHaveALineEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for members, want := range map[int]int{10: 10, 200: 1} {
			var log logs.Buffer
			set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
			for n := range members {
				name := fmt.Sprintf("r%03d", n)
				p := away("refused on port 4711")
				p.Remedy = "exclude " + name
				set.Add(name, starting).Update(p)
			}
			time.Sleep(time.Minute)
			if lines := log.Lines(); len(lines) != want {
				t.Errorf("%d members: %d lines: %q", members, len(lines), lines)
			}
			late := away("refused on port 4712")
			late.Remedy = "exclude the late one"
			set.Add("late", starting).Update(late)
			time.Sleep(time.Minute)
			if lines := log.Lines(); len(lines) != want+1 || !strings.HasSuffix(lines[want], "resources=late") {
				t.Errorf("the late one: %q", lines[want:])
			}
			set.Close()
		}
	})
}

// TestADurationThatGrowsIsNoNews, however it is written.
func TestADurationThatGrowsIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		set := condition.NewSet(logs.WithoutTime(&log), "resource", "resources")
		defer set.Close()
		pods := set.Add("pods", ready)
		for _, d := range []time.Duration{10 * time.Second, time.Minute, 90 * time.Second, time.Hour, 1500 * time.Millisecond} {
			pods.Update(away(fmt.Sprintf("no answer for %s", d)))
			time.Sleep(time.Minute)
		}
		expectLines(t, &log, `level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason="no answer for 10s" resources=pods`)
	})
}
