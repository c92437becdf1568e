package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const timelinePassword = "correct horse battery staple"

// askHistory asks a server for a path, from this machine and with the password, unless change makes it another request.
func askHistory(t *testing.T, ask func(context.Context, Question) (Timeline, error), path string, change func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	s := New(Options{Snapshot: sample, Timelines: &Timelines{Ask: ask, Password: timelinePassword}})
	return s.timelineOf(t.Context(), path, change)
}

func (s *Server) timelineOf(ctx context.Context, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	r.RemoteAddr = "127.0.0.1:40000"
	r.SetBasicAuth("anybody", timelinePassword)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// TestATimelineIsForHoldersOfThePasswordOnThisMachine: others learn nothing, and have nothing read for them.
func TestATimelineIsForHoldersOfThePasswordOnThisMachine(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*http.Request)
		code   int
		text   string
	}{
		"by a network":      {func(r *http.Request) { r.RemoteAddr = "192.0.2.1:40000" }, http.StatusForbidden, "port-forward"},
		"by IPv6":           {func(r *http.Request) { r.RemoteAddr = "[2001:db8::1]:40000" }, http.StatusForbidden, "port-forward"},
		"forwarded for":     {func(r *http.Request) { r.RemoteAddr = "10.0.0.1:1"; r.Header.Set("X-Forwarded-For", "127.0.0.1") }, http.StatusForbidden, "port-forward"},
		"without password":  {func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized, "exporter history page"},
		"another password":  {func(r *http.Request) { r.SetBasicAuth("anybody", timelinePassword+" ") }, http.StatusUnauthorized, "exporter history page"},
		"no password":       {func(r *http.Request) { r.SetBasicAuth("anybody", "") }, http.StatusUnauthorized, "exporter history page"},
		"password as token": {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+timelinePassword) }, http.StatusUnauthorized, "exporter history page"},
	} {
		asked := false
		w := askHistory(t, func(context.Context, Question) (Timeline, error) { asked = true; return Timeline{}, nil }, "/history?namespace=shop", c.change)
		if w.Code != c.code || asked || !strings.Contains(w.Body.String(), c.text) || strings.Contains(w.Body.String(), timelinePassword) {
			t.Errorf("%s: %d, asked %v: %s", name, w.Code, asked, w.Body)
		}
		if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (c.code == http.StatusUnauthorized) {
			t.Errorf("%s: %q", name, challenge)
		}
	}
	for _, from := range []string{"[::1]:40000", "[::ffff:127.0.0.1]:40000"} {
		if w := askHistory(t, nil, "/history", func(r *http.Request) { r.RemoteAddr = from }); w.Code != http.StatusOK {
			t.Errorf("%s: %d", from, w.Code)
		}
	}
	if w := get(t, sample(), "/history"); w.Code != http.StatusNotFound {
		t.Errorf("without timelines: %d", w.Code)
	}
}

// TestATimelineShowsHostileTextAsText, of a question and of an answer.
func TestATimelineShowsHostileTextAsText(t *testing.T) {
	const hostile = `</script><script>alert(1)</script>"'><img src=x onerror=alert(1)>`
	long := strings.Repeat("x", 3000)
	var asked Question
	answer := Timeline{Older: 1234, Command: "exporter " + hostile, Entries: []TimelineEntry{
		{Time: "now", Type: "updated", Object: "pods " + hostile, Author: hostile, User: true, Changes: []string{hostile + " → " + hostile, long}},
		{Time: "then", Type: "gap", Object: "pods", Notes: []string{"unknown between a and b: " + hostile}},
		{Time: "before", Type: "updated", Object: "pods x", Author: "kubectl"},
	}}
	w := askHistory(t, func(_ context.Context, q Question) (Timeline, error) { asked = q; return answer, nil },
		"/history?sink=s&resource=%3Cscript%3E&namespace=%22%3E%3Cb%3E&name=%E2%80%AE&since=2h", nil)
	body := w.Body.String()
	if w.Code != http.StatusOK || asked != (Question{"s", "<script>", `"><b>`, "\u202e", "2h"}) {
		t.Errorf("%d, asked %+v", w.Code, asked)
	}
	if strings.Contains(body, "<script") || strings.Contains(body, "<img") || strings.Contains(body, `"><b>"`) {
		t.Errorf("it is no text:\n%s", body)
	}
	for _, want := range []string{"unknown between", "1,234 more", long, "by field manager <bdi>kubectl", `value="2h"`, "by <bdi>&lt;/script"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	if policy := w.Header().Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || w.Header().Get("Cache-Control") != "no-store" {
		t.Error(w.Header())
	}
}

// TestATimelineNamesWhyThereIsNoAnswer, and asks nothing before there is a question.
func TestATimelineNamesWhyThereIsNoAnswer(t *testing.T) {
	for want, c := range map[string]struct {
		err  error
		code int
	}{
		"no type &#34;podz&#34;":      {fmt.Errorf(`no type "podz": %w`, ErrQuestion), http.StatusBadRequest},
		"permission denied":           {errors.New("open x: permission denied"), http.StatusServiceUnavailable},
		"no answer within 10s":        {context.DeadlineExceeded, http.StatusServiceUnavailable},
		"cannot be read: a bad index": {nil, http.StatusServiceUnavailable},
	} {
		w := askHistory(t, func(context.Context, Question) (Timeline, error) {
			if c.err == nil {
				panic("a bad index")
			}
			return Timeline{}, c.err
		}, "/history?resource=podz", nil)
		if body := w.Body.String(); w.Code != c.code || !strings.Contains(body, want) || !strings.Contains(body, `value="podz"`) {
			t.Errorf("%q: %d\n%s", want, w.Code, body)
		}
	}
	asked := func(context.Context, Question) (Timeline, error) { t.Error("asked"); return Timeline{}, nil }
	if w := askHistory(t, asked, "/history", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `value="1h"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestOneQuestionIsAnsweredAtATime, so that a place that hangs costs one goroutine, and an answer ten seconds.
func TestOneQuestionIsAnsweredAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		release := make(chan struct{})
		s := New(Options{Snapshot: sample, Timelines: &Timelines{Password: timelinePassword, Ask: func(context.Context, Question) (Timeline, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-release // whatever becomes of the context
			return Timeline{Command: "answered"}, nil
		}}})
		codes := make(chan int, 20)
		begun := time.Now()
		for range 20 {
			go func() { codes <- s.timelineOf(t.Context(), "/history?namespace=shop", nil).Code }()
		}
		for range 20 {
			if code := <-codes; code != http.StatusServiceUnavailable {
				t.Error(code)
			}
		}
		if took := time.Since(begun); took != askWithin || most.Load() != 1 {
			t.Errorf("%v, %d at once", took, most.Load())
		}
		close(release)
		synctest.Wait()
		if w := s.timelineOf(t.Context(), "/history?namespace=shop", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "answered") {
			t.Errorf("after it: %d", w.Code)
		}
	})
}

func TestThePageNamesTheTimelineIfThereIsAHistory(t *testing.T) {
	s := sample()
	for _, path := range []string{"/", "/resource?name=pods", "/sink?name=main"} {
		if body := get(t, s, path).Body.String(); strings.Contains(body, "timeline") {
			t.Errorf("%s: %s", path, body)
		}
	}
	s.AddSink(SinkStatus{Name: "past", Kind: "history"}, nil)
	for path, want := range map[string]string{"/": `href="history"`, "/resource?name=pods": `href="history?resource=pods"`, "/sink?name=past": `href="history?sink=past"`} {
		if body := get(t, s, path).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s has no %s", path, want)
		}
	}
}
