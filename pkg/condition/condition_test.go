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
	ready    = condition.State{Name: "ready", Message: "delivers"}
	slow     = condition.State{Name: "slow", Severity: condition.Degraded, Message: "is slow", Level: slog.LevelWarn}
	away     = condition.State{Name: "away", Severity: condition.NotReady, Message: "does not deliver", Level: slog.LevelWarn}
)

// logRecorder collects lines without their times.
type logRecorder struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *logRecorder) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *logRecorder) recordedLines() []string {
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

func expectLines(t *testing.T, j *logRecorder, want ...string) {
	t.Helper()
	if got := j.recordedLines(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEachChangeIsLoggedOnceAndRetriesAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logRecorder
		c := condition.New(logTo(&log), starting)
		c.Update(ready, "", "", "server", "b1")
		for range 5 {
			c.Update(ready, "", "")
		}
		time.Sleep(time.Minute)
		for range 3 {
			c.Update(away, "connection refused", "")
			time.Sleep(time.Second)
			c.Update(away, "no such host", "check kafka.brokers")
			time.Sleep(time.Second)
		}
		c.Update(ready, "", "")
		c.Update(away, "connection refused", "")
		expectLines(t, &log,
			`level=INFO msg=delivers state=ready server=b1`,
			`level=WARN msg="does not deliver" state=away reason="connection refused"`,
			`level=WARN msg="does not deliver" state=away reason="no such host" remedy="check kafka.brokers"`,
			`level=INFO msg=delivers state=ready lasted=6s`,
			`level=WARN msg="does not deliver" state=away reason="connection refused"`,
		)
	})
}

func TestTheStatusHasItsStartAndRemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := condition.New(logTo(io.Discard), ready)
		if s := c.Status(); !s.OK() || s.Explanation() != "" || s.NotReady() != "" || s.Degraded() != "" {
			t.Errorf("well: %+v", s)
		}
		began := time.Now()
		c.Update(away, "connection refused", "")
		time.Sleep(time.Second)
		c.Update(away, "no such host", "check kafka.brokers")
		s := c.Status()
		if !s.Since.Equal(began) || s.NotReady() != "no such host; check kafka.brokers" || s.Degraded() != "" {
			t.Errorf("away: %+v", s)
		}
		c.Update(slow, "", "")
		if s := c.Status(); s.Since.Equal(began) || s.NotReady() != "" || s.Degraded() != "slow" {
			t.Errorf("slow: %+v", s)
		}
	})
}

func TestAReasonThatNeverRepeatsDoesNotFillTheLog(t *testing.T) {
	var log logRecorder
	c := condition.New(logTo(&log), ready)
	for n := range 1000 {
		c.Update(away, fmt.Sprintf("try %d", n), "")
	}
	if n := len(log.recordedLines()); n != 16 {
		t.Errorf("%d lines", n)
	}
	if s := c.Status(); s.Reason != "try 999" {
		t.Errorf("the status has reason %q, not the last one", s.Reason)
	}
}

func TestAnIntermittentFailureIsOneFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logRecorder
		c := condition.New(logTo(&log), ready)
		defer c.Close()
		for range 10 {
			c.Update(slow, "a quota", "")
			c.UpdateAfter(10*time.Second, ready)
			time.Sleep(9 * time.Second)
		}
		if c.Status().OK() {
			t.Error("over before its time")
		}
		time.Sleep(time.Second + time.Nanosecond)
		synctest.Wait()
		expectLines(t, &log,
			`level=WARN msg="is slow" state=slow reason="a quota"`,
			`level=INFO msg=delivers state=ready lasted=1m31s`,
		)
	})
}

func TestAnOutdatedAnswerIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := condition.New(logTo(io.Discard), ready)
		asked := time.Now()
		since := func(now condition.Status) bool { return now.Since.Before(asked) }
		time.Sleep(time.Second)
		c.Update(away, "refused", "")
		c.UpdateIf(since, ready, "", "")
		if c.Status().OK() {
			t.Error("an old answer ended the trouble")
		}
		asked = time.Now().Add(time.Nanosecond)
		c.UpdateIf(since, ready, "", "")
		if !c.Status().OK() {
			t.Error("a new answer did not end the trouble")
		}
	})
}

func TestNothingIsLoggedAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logRecorder
		c := condition.New(logTo(&log), ready)
		c.Update(slow, "a quota", "")
		c.UpdateAfter(time.Second, ready)
		c.Close()
		c.UpdateAfter(time.Second, ready)
		c.Update(away, "gone", "")
		time.Sleep(time.Minute)
		expectLines(t, &log, `level=WARN msg="is slow" state=slow reason="a quota"`)
	})
}

// blockedWriter is a log without a reader.
type blockedWriter struct{ release chan struct{} }

func (s blockedWriter) Write(p []byte) (int, error) {
	<-s.release
	return len(p), nil
}

func TestABlockedLogBlocksNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := blockedWriter{make(chan struct{})}
		c := condition.New(logTo(log), ready)
		go c.Update(away, "first", "")
		synctest.Wait()
		c.Update(away, "second", "")
		c.Update(ready, "", "")
		if s := c.Status(); !s.OK() {
			t.Errorf("status %+v", s)
		}
		close(log.release)
	})
}

func TestLinesKeepTheirOrder(t *testing.T) {
	var log logRecorder
	c := condition.New(logTo(&log), ready)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				c.Update(away, "refused", "")
				c.Update(ready, "", "")
			}
		})
	}
	all.Wait()
	for i, line := range log.recordedLines() {
		if want := []string{"state=away", "state=ready"}[i%2]; !strings.Contains(line, want) {
			t.Fatalf("line %d is %q, want %s", i, line, want)
		}
	}
}

func TestEqualStatusesAreOneSummary(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	got := condition.Summarize(map[string]condition.Status{
		"pods":       {State: away, Reason: "refused", Since: late},
		"nodes":      {State: ready, Since: late},
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
