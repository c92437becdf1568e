package condition_test

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var ready, starting condition.Problem = condition.Problem{}, condition.Problem{Code: condition.SinkConnecting}

// away and slow are problems with a cause, of a destination that is not reached and of one that is slow.
func away(cause string) condition.Problem {
	return condition.Problem{Code: condition.SinkUnreachable, Cause: cause}
}
func slow(cause string) condition.Problem {
	return condition.Problem{Code: condition.SinkThrottled, Cause: cause}
}

var codeTexts = regexp.MustCompile(` (effect|remedy)="[^"]*"`)

func expectLines(t *testing.T, j *logs.Buffer, want ...string) {
	t.Helper()
	got := j.Lines()
	for i := range got { // the texts of codes are not of interest here
		got[i] = codeTexts.ReplaceAllString(got[i], "")
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEachChangeIsLoggedOnceAndRetriesAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		c := condition.New(logs.WithoutTime(&log), "sink/main", starting)
		c.Update(ready, "server", "b1")
		for range 5 {
			c.Update(ready)
		}
		time.Sleep(time.Minute)
		for range 3 {
			c.Update(away("connection refused"))
			time.Sleep(time.Second)
			c.Update(away("no such host"))
			time.Sleep(time.Second)
		}
		c.Update(ready)
		c.Update(away("connection refused"))
		expectLines(t, &log,
			`level=INFO msg=connected ended=SinkConnecting lasted=0s server=b1`,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason="connection refused"`,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason="no such host"`,
			`level=INFO msg=delivers ended=SinkUnreachable lasted=6s`,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason="connection refused"`,
		)
	})
}

// TestWhatEndsWithinAStartIsOneLine also has what lasts longer, and what a stop leaves.
func TestWhatEndsWithinAStartIsOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		begin := func() *condition.Condition {
			return condition.New(logs.WithoutTime(&log), "sink/main", starting).QuietUntil(time.Now().Add(30 * time.Second))
		}
		missing := func(cause string) condition.Problem {
			return condition.Problem{Code: condition.SinkTargetMissing, Cause: cause}
		}
		ends, lasts, stopped, wrong := begin(), begin(), begin(), begin()
		wrong.Update(away("refused"))
		for range 3 {
			time.Sleep(time.Second)
			ends.Update(missing("no leader"))
			time.Sleep(time.Second)
			ends.Update(ready)
		}
		lasts.Update(missing("lasts"))
		stopped.Update(missing("stopped"))
		stopped.Close()
		time.Sleep(time.Minute)
		lasts.Update(ready)
		expectLines(t, &log,
			`level=WARN msg="the destination cannot be reached" code=SinkUnreachable reason=refused`,
			`level=INFO msg=delivers ended=SinkTargetMissing lasted=2s`,
			`level=WARN msg="the topic or stream does not exist" code=SinkTargetMissing reason=stopped`,
			`level=WARN msg="the topic or stream does not exist" code=SinkTargetMissing reason=lasts`,
			`level=INFO msg=delivers ended=SinkTargetMissing lasted=1m6s`,
		)
	})
}

func TestTheStatusHasTheNewestCauseAndItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := condition.New(logs.WithoutTime(io.Discard), "sink/main", ready)
		if s := c.Status(); !s.OK() || s.Text(time.Now()) != "" || s.Severity != condition.OK {
			t.Errorf("well: %+v", s)
		}
		began := time.Now()
		c.Update(away("connection refused"))
		time.Sleep(time.Second)
		c.Update(condition.Problem{Code: condition.SinkUnreachable, Cause: "no\n such host", Remedy: "check kafka.brokers"})
		s := c.Status()
		const want = "SinkUnreachable: no such host. Effect: changes wait in the journal, and other sinks continue. " +
			"Remedy: check kafka.brokers. Since 2000-01-01T00:00:00Z."
		if got := s.Text(time.Now()); !s.Since.Equal(began) || s.Severity != condition.NotReady || got != want {
			t.Errorf("away since %v: %s\nwant %s", s.Since, got, want)
		}
		c.Update(slow("a quota"))
		if s := c.Status(); s.Since.Equal(began) || s.Severity != condition.Degraded {
			t.Errorf("slow: %+v", s)
		}
	})
}

// TestHistoryThatGetsLostHasADeadline also changes the code meanwhile: nothing is read since the first one.
func TestHistoryThatGetsLostHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := condition.New(logs.WithoutTime(io.Discard), "journal", ready)
		expect := func(want string) {
			t.Helper()
			if got := c.Status().EffectText(time.Now()); !strings.HasSuffix(got, want) {
				t.Errorf("the effect is %q, want %q", got, want)
			}
		}
		c.Update(condition.Problem{Code: condition.JournalDiskLow, LosesHistory: true})
		expect("; history is lost in about 5 min")
		time.Sleep(time.Minute)
		c.Update(condition.Problem{Code: condition.JournalFull, LosesHistory: true})
		expect("; history is lost in about 4 min")
		time.Sleep(3*time.Minute + 30*time.Second)
		expect("; history is lost in about 30 s")
		time.Sleep(2*time.Minute + 30*time.Second)
		expect("; history has been getting lost for about 2 min")
		c.Clear()
		c.Update(condition.Problem{Code: condition.DeadLettersFull})
		expect("other lanes continue")
	})
}

func TestACauseThatNeverRepeatsDoesNotFillTheLog(t *testing.T) {
	var log logs.Buffer
	c := condition.New(logs.WithoutTime(&log), "sink/main", ready)
	for n := range 1000 {
		c.Update(away(fmt.Sprintf("try %d", n)))
	}
	if n := len(log.Lines()); n != 1 {
		t.Errorf("%d lines for causes that differ in a number", n)
	}
	for n := range 1000 {
		c.Update(away(strings.Repeat("x", n)))
	}
	if n := len(log.Lines()); n != 16 {
		t.Errorf("%d lines", n)
	}
	if s := c.Status(); len(s.Cause) != 999 {
		t.Errorf("the status has cause %q, not the last one", s.Cause)
	}
}

func TestAnOutdatedAnswerIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := condition.New(logs.WithoutTime(io.Discard), "sink/main", ready)
		asked := time.Now()
		since := func(now condition.Status) bool { return now.Since.Before(asked) }
		time.Sleep(time.Second)
		c.Update(away("refused"))
		c.UpdateIf(since, ready)
		if c.Status().OK() {
			t.Error("an old answer ended the trouble")
		}
		asked = time.Now().Add(time.Nanosecond)
		c.UpdateIf(since, ready)
		if !c.Status().OK() {
			t.Error("a new answer did not end the trouble")
		}
	})
}

func TestNothingIsLoggedAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		c := condition.New(logs.WithoutTime(&log), "sink/main", ready)
		c.Update(slow("a quota"))
		c.Close()
		c.Update(away("gone"))
		time.Sleep(time.Minute)
		expectLines(t, &log,
			`level=WARN msg="kafka throttles requests; delivery is limited to the quota" code=SinkThrottled reason="a quota"`)
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
		c := condition.New(logs.WithoutTime(log), "sink/main", ready)
		go c.Update(away("first"))
		synctest.Wait()
		c.Update(away("second"))
		c.Update(ready)
		if s := c.Status(); !s.OK() {
			t.Errorf("status %+v", s)
		}
		close(log.release)
	})
}

func TestLinesKeepTheirOrder(t *testing.T) {
	var log logs.Buffer
	c := condition.New(logs.WithoutTime(&log), "sink/main", ready)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				c.Update(away("refused"))
				c.Update(ready)
			}
		})
	}
	all.Wait()
	for i, line := range log.Lines() {
		if want := []string{"code=SinkUnreachable", "ended=SinkUnreachable"}[i%2]; !strings.Contains(line, want) {
			t.Fatalf("line %d is %q, want %s", i, line, want)
		}
	}
}

func TestOneFaultOfManyPartsIsOneStatus(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	status := func(component, name string, p condition.Problem, since time.Time) condition.Status {
		s := condition.NewStatus(component, p)
		s.Members, s.Of, s.Since = []string{name}, 4, since
		return s
	}
	got := condition.Summarize([]condition.Status{
		status("resource", "pods", away("port 1: refused"), late),
		status("resource", "nodes", ready, late),
		status("resource", "configmaps", away("port 2: refused"), early),
		status("resource", "secrets", away("forbidden"), early),
		status("sink/main", "topic-1", away("port 1: refused"), early),
	})
	var text []string
	for _, s := range got {
		text = append(text, fmt.Sprintf("%s %s since %d", s.Name(), s.CauseText(), s.Since.Unix()))
	}
	const want = "resource 3 of 4 (configmaps, pods, secrets): port 1: refused; forbidden since 1\n" +
		"sink/main/topic-1 port 1: refused since 1"
	if strings.Join(text, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(text, "\n"), want)
	}
}

func TestWhatFollowsFromAFaultIsLeftOut(t *testing.T) {
	const cause = "not connected to 127.0.0.1:4222"
	status := func(component string, code condition.Code, cause string, members ...string) condition.Status {
		s := condition.NewStatus(component, condition.Problem{Code: code, Cause: cause})
		s.Members = members
		return s
	}
	for name, c := range map[string]struct {
		all  []condition.Status
		want string
	}{
		"of the same component": {[]condition.Status{
			status("replica", condition.LeaseYielded, "replica: "+cause), status("replica", condition.FailoverFailing, cause), status("replica", condition.StateUnreachable, cause),
		}, "FailoverFailing"},
		"of the same code": {[]condition.Status{
			status("journal", condition.DeadLettersFull, "at the bound"), status("sink/main", condition.DeadLettersFull, "at the bound", "lane 1"),
		}, "DeadLettersFull"},
		"of other members": {[]condition.Status{
			status("resource", condition.APIServerUnreachable, cause, "pods"), status("resource", condition.ResourceFailing, cause, "secrets"),
		}, "APIServerUnreachable ResourceFailing"},
		"of equal severity": {[]condition.Status{status("a", condition.SinkTimeout, cause), status("a", condition.SinkFailing, cause)}, "SinkTimeout"},
		"of another component and code": {[]condition.Status{
			status("sink/a", condition.SinkUnreachable, cause), status("sink/b", condition.SinkFailing, cause),
		}, "SinkUnreachable SinkFailing"},
		"a part of a start": {[]condition.Status{
			status("sink/a", condition.SinkConnecting, ""), status("sink/a", condition.SinkMisconfigured, cause),
		}, "SinkMisconfigured"},
		"of other sinks": {[]condition.Status{
			status("sink/a", condition.SinkUnreachable, cause), status("sink/b", condition.SinkUnreachable, cause),
		}, "SinkUnreachable SinkUnreachable"},
		"of a component that it waits for": {[]condition.Status{
			condition.NewStatus("sink/a", condition.Problem{Code: condition.DeadLettersHeld, Cause: "timeout", From: "sink/b"}),
			status("sink/b", condition.SinkUnreachable, cause),
		}, "SinkUnreachable"},
		"of a part of a component that it waits for": {[]condition.Status{
			condition.NewStatus("sink/a", condition.Problem{Code: condition.DeadLettersHeld, Cause: "timeout", From: "sink/b"}),
			status("sink/b", condition.SinkUnreachable, cause, "lane 1"),
		}, "SinkUnreachable DeadLettersHeld"},
		"more severe than its cause": {[]condition.Status{
			status("replica", condition.StateUnreachable, cause), status("replica", condition.FailoverFailing, "lanes: "+cause),
		}, "FailoverFailing StateUnreachable"},
	} {
		var got []string
		for _, s := range condition.Summarize(c.all) {
			got = append(got, string(s.Code))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestAProblemThatIsPassedOnIsLoggedByItsOwnerOnly has a lane fail because of something that has a condition of its own.
func TestAProblemThatIsPassedOnIsLoggedByItsOwnerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs.Buffer
		lanes := condition.NewSet(logs.WithoutTime(&log), "sink/a", "lanes")
		lane, sink := lanes.Add("1", condition.Problem{}), condition.New(logs.WithoutTime(&log), "sink/a", condition.Problem{})
		held := condition.Problem{Code: condition.DeadLettersHeld, Cause: "timeout", Remedy: "wait", From: "sink/b"}
		err := fmt.Errorf("publish: %w", held.AsError())
		for _, c := range []*condition.Condition{lane, sink} {
			c.Update(condition.ProblemOf(err, condition.SinkFailing))
			if s := c.Status(); s.Code != held.Code || s.Cause != held.Cause || s.Remedy != held.Remedy || s.From != held.From {
				t.Errorf("%+v", s)
			}
		}
		time.Sleep(time.Minute)
		lane.Clear()
		sink.Clear()
		lanes.Close()
		expectLines(t, &log)
	})
}

// TestWhatAFaultDelaysElsewhereIsItsEffect has the dead letters of one sink wait for another one.
func TestWhatAFaultDelaysElsewhereIsItsEffect(t *testing.T) {
	all := condition.Summarize([]condition.Status{
		condition.NewStatus("sink/b", condition.Problem{Code: condition.SinkUnreachable}),
		condition.NewStatus("sink/a", condition.Problem{Code: condition.DeadLettersHeld, From: "sink/b"}),
	})
	if len(all) != 1 || !strings.HasSuffix(all[0].Effect, "; sink/a: "+condition.DeadLettersHeld.Kind().Effect) {
		t.Errorf("%+v", all)
	}
}

// TestTheSameProblemOfWhatBelongsToAComponentIsOneLine has the resources of a paused rule, which know when history is lost.
func TestTheSameProblemOfWhatBelongsToAComponentIsOneLine(t *testing.T) {
	at := time.Now()
	of := func(component, cause, from string) condition.Status {
		s := condition.NewStatus(component, condition.Problem{Code: condition.RulePaused, Cause: cause, From: from})
		if from != "" {
			s.Members, s.Deadline = []string{"pods"}, at
		}
		return s
	}
	all := condition.Summarize([]condition.Status{
		of("resource", "paused by signal a", "rule/x"), of("resource", "paused by signal b", "rule/y"),
		of("rule/x", "paused by signal a", ""), of("rule/y", "paused by signal c", ""),
	})
	var got []string
	for _, s := range all {
		got = append(got, fmt.Sprint(s.Name(), " ", s.Cause, " ", s.Deadline.Equal(at), s.Effect == condition.RulePaused.Kind().Effect))
	}
	want := "resource/pods paused by signal b true true, rule/x paused by signal a true true, rule/y paused by signal c false true"
	if strings.Join(got, ", ") != want {
		t.Errorf("%q", got)
	}
}
