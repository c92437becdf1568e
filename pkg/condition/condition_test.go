package condition_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var (
	starting = condition.State{Name: "starting", Severity: condition.NotReady, Message: "not there yet"}
	works    = condition.State{Name: "ready", Message: "delivers"}
	slow     = condition.State{Name: "slow", Severity: condition.Degraded, Message: "is slow", Level: slog.LevelWarn}
	away     = condition.State{Name: "away", Severity: condition.NotReady, Message: "does not deliver", Level: slog.LevelWarn}
)

// journal collects lines without their times.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) lines() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.b.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(j.b.String(), "\n"), "\n")
}

func logTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func expect(t *testing.T, j *journal, want ...string) {
	t.Helper()
	if got := j.lines(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestALineForEachChangeAndNoneForARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		c := condition.New(logTo(&log), starting)
		c.Become(works, "", "", "server", "b1")
		for range 5 {
			c.Become(works, "", "")
		}
		time.Sleep(time.Minute)
		for range 3 {
			c.Become(away, "connection refused", "")
			time.Sleep(time.Second)
			c.Become(away, "no such host", "check kafka.brokers")
			time.Sleep(time.Second)
		}
		c.Become(works, "", "")
		c.Become(away, "connection refused", "")
		expect(t, &log,
			`level=INFO msg=delivers state=ready server=b1`,
			`level=WARN msg="does not deliver" state=away reason="connection refused"`,
			`level=WARN msg="does not deliver" state=away reason="no such host" remedy="check kafka.brokers"`,
			`level=INFO msg=delivers state=ready lasted=6s`,
			`level=WARN msg="does not deliver" state=away reason="connection refused"`,
		)
	})
}

func TestTheStatusSaysSinceWhenAndWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := condition.New(logTo(io.Discard), works)
		if s := c.Status(); !s.OK() || s.Explanation() != "" || s.NotReady() != "" || s.Degraded() != "" {
			t.Errorf("well: %+v", s)
		}
		began := time.Now()
		c.Become(away, "connection refused", "")
		time.Sleep(time.Second)
		c.Become(away, "no such host", "check kafka.brokers")
		s := c.Status()
		if !s.Since.Equal(began) || s.NotReady() != "no such host; check kafka.brokers" || s.Degraded() != "" {
			t.Errorf("away: %+v", s)
		}
		c.Become(slow, "", "")
		if s := c.Status(); s.Since.Equal(began) || s.NotReady() != "" || s.Degraded() != "slow" {
			t.Errorf("slow: %+v", s)
		}
	})
}

func TestAReasonThatNeverRepeatsDoesNotFillTheLog(t *testing.T) {
	var log journal
	c := condition.New(logTo(&log), works)
	for n := range 1000 {
		c.Become(away, fmt.Sprintf("try %d", n), "")
	}
	if n := len(log.lines()); n != 16 {
		t.Errorf("%d lines", n)
	}
	if s := c.Status(); s.Reason != "try 999" {
		t.Errorf("people read %q, not what was met last", s.Reason)
	}
}

func TestTroubleThatComesAndGoesIsOneTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		c := condition.New(logTo(&log), works)
		defer c.Close()
		for range 10 {
			c.Become(slow, "a quota", "")
			c.BecomeAfter(10*time.Second, works)
			time.Sleep(9 * time.Second)
		}
		if c.Status().OK() {
			t.Error("over before its time")
		}
		time.Sleep(time.Second + time.Nanosecond)
		synctest.Wait()
		expect(t, &log,
			`level=WARN msg="is slow" state=slow reason="a quota"`,
			`level=INFO msg=delivers state=ready lasted=1m31s`,
		)
	})
}

func TestAnAnswerFromBeforeTheLastChangeIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := condition.New(logTo(io.Discard), works)
		asked := time.Now()
		since := func(now condition.Status) bool { return now.Since.Before(asked) }
		time.Sleep(time.Second)
		c.Become(away, "refused", "")
		c.BecomeIf(since, works, "", "")
		if c.Status().OK() {
			t.Error("an old answer ended the trouble")
		}
		asked = time.Now().Add(time.Nanosecond)
		c.BecomeIf(since, works, "", "")
		if !c.Status().OK() {
			t.Error("a new answer did not end the trouble")
		}
	})
}

func TestNothingIsLoggedAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log journal
		c := condition.New(logTo(&log), works)
		c.Become(slow, "a quota", "")
		c.BecomeAfter(time.Second, works)
		c.Close()
		c.BecomeAfter(time.Second, works)
		c.Become(away, "gone", "")
		time.Sleep(time.Minute)
		expect(t, &log, `level=WARN msg="is slow" state=slow reason="a quota"`)
	})
}

// stuck is a log that nobody reads.
type stuck struct{ release chan struct{} }

func (s stuck) Write(p []byte) (int, error) {
	<-s.release
	return len(p), nil
}

func TestALogThatHangsHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := stuck{make(chan struct{})}
		c := condition.New(logTo(log), works)
		go c.Become(away, "first", "")
		synctest.Wait()
		c.Become(away, "second", "")
		c.Become(works, "", "")
		if s := c.Status(); !s.OK() {
			t.Errorf("status %+v", s)
		}
		close(log.release)
	})
}

func TestLinesKeepTheirOrder(t *testing.T) {
	var log journal
	c := condition.New(logTo(&log), works)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				c.Become(away, "refused", "")
				c.Become(works, "", "")
			}
		})
	}
	all.Wait()
	for i, line := range log.lines() {
		if want := []string{"state=away", "state=ready"}[i%2]; !strings.Contains(line, want) {
			t.Fatalf("line %d is %q, want %s", i, line, want)
		}
	}
}

func TestEqualStatusesAreOneSummary(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	got := condition.Summarize(map[string]condition.Status{
		"pods":       {State: away, Reason: "refused", Since: late},
		"nodes":      {State: works, Since: late},
		"configmaps": {State: away, Reason: "refused", Since: early},
		"secrets":    {State: away, Reason: "forbidden", Since: early},
	})
	var text []string
	for _, s := range got {
		text = append(text, fmt.Sprintf("%v %s %s %d", s.Names, s.State.Name, s.Reason, s.Since.Unix()))
	}
	want := "[configmaps pods] away refused 1\n[nodes] ready  2\n[secrets] away forbidden 1"
	if strings.Join(text, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(text, "\n"), want)
	}
}
