package serve

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/internal/history"
	store "github.com/kubecdc/kubecdc/pkg/history"
)

// replayed is a history of Pods: known up to version 33 in minute 7, and again from version 40 in minute 11 on.
func replayed(t *testing.T) *history.History {
	var rows []store.Row
	for _, text := range []string{
		"pods snapshot.begin 1", "pods snapshot a/b 2", "pods snapshot a/c 3", "pods snapshot.end 10", "pods updated a/b 20", "pods deleted a/c 25",
		"pods added a/d 30", "pods updated a/d 33", "secrets snapshot.begin 31", "secrets snapshot.end 31", "pods gap 40", "pods updated a/b 35", "pods updated a/b 45", "pods deleted a/d 50",
	} {
		rows = append(rows, rowOf(text))
	}
	gap := &rows[10]
	gap.GapFrom, gap.GapTo, gap.GapReason = "33", "40", "history was compacted"
	return openHistory(t, rows)
}

// play has the history replayed from minute 3 on, a minute in a second, while a test runs.
func play(t *testing.T, test func(ask func(path string) (code int, body string))) {
	h := replayed(t)
	s := loadFrom(t, h, begin.Add(3*time.Minute).Format(time.RFC3339))
	var windows [][]history.Step // read outside of the bubble, which the pools of Parquet do not know
	for steps, err := range history.Replay(t.Context(), h, s.cluster, s.doubt, s.moment, h.OrNewest(history.Moment{})) {
		if err != nil {
			t.Fatal(err)
		}
		windows = append(windows, steps)
	}
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error)
		s.moved = make(chan struct{}) // of the bubble
		all := func(yield func([]history.Step, error) bool) {
			for _, steps := range windows {
				if !yield(steps, nil) {
					return
				}
			}
		}
		go func() { ended <- s.play(t.Context(), all, 60) }()
		synctest.Wait()
		test(func(path string) (int, string) {
			w := ask(t, s.latest.Load(), http.MethodGet, path, "application/json")
			return w.Code, w.Body.String()
		})
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// listOf writes what a list has.
func listOf(t *testing.T, code int, body string) string {
	t.Helper()
	var list struct {
		Message  string
		Metadata struct{ ResourceVersion, Continue string }
		Items    []struct {
			Metadata struct{ Name, ResourceVersion string }
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(code, " ", list.Metadata.ResourceVersion, ":")
	for _, o := range list.Items {
		text += " " + o.Metadata.Name + "@" + o.Metadata.ResourceVersion
	}
	return text + list.Message
}

// watchOf writes the events of a watch.
func watchOf(t *testing.T, body string) string {
	t.Helper()
	var all []string
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		var e struct {
			Type   string
			Object struct {
				Reason   string
				Metadata struct{ Name, ResourceVersion string }
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		all = append(all, e.Type+" "+e.Object.Reason+e.Object.Metadata.Name+"@"+e.Object.Metadata.ResourceVersion)
	}
	return strings.Join(all, ", ")
}

// TestAReplayIsListedAsItIsAtEachMoment and at the versions before, as long as these are known.
func TestAReplayIsListedAsItIsAtEachMoment(t *testing.T) {
	play(t, func(ask func(string) (int, string)) {
		const exact = "/api/v1/pods?resourceVersionMatch=Exact&resourceVersion="
		at, token := time.Now(), ""
		for _, c := range []struct {
			minute     int
			path, want string
		}{
			{3, "/api/v1/pods", "200 10: b@2 c@3"},
			{3, "/api/v1/pods?limit=1", "200 10: b@2"},
			{4, "/api/v1/pods", "200 20: b@20 c@3"},
			{5, "/api/v1/pods", "200 25: b@20"},
			{6, "/api/v1/pods", "200 30: b@20 d@30"},
			{6, exact + "10", "200 10: b@2 c@3"},
			{6, exact + "22", "200 22: b@20 c@3"},
			{6, exact + "31", "410 :too old resource version: 31: what is served now is known from 10 to 30"},
			{6, "/api/v1/pods?limit=1&continue=TOKEN", "200 10: c@3"},
			{8, "/api/v1/pods", "410 :pods: unknown between"},
			{8, "/api/v1/namespaces/a/pods/b", "410 :pods: unknown between"},
			{9, "/api/v1/secrets", "200 31:"},
			{11, "/api/v1/pods", "200 40: b@35 d@33"},
			{11, exact + "33", "410 :too old resource version: 33"},
			{11, "/api/v1/pods?limit=1&continue=TOKEN", "410 :too old resource version: 10"},
			{12, "/api/v1/pods", "200 45: b@45 d@33"},
			{99, "/api/v1/pods", "200 50: b@45"},
		} {
			time.Sleep(time.Until(at.Add(time.Duration(c.minute-3)*time.Second + time.Millisecond)))
			synctest.Wait()
			code, body := ask(strings.ReplaceAll(c.path, "TOKEN", token))
			if _, after, ok := strings.Cut(body, `"continue":"`); ok && token == "" {
				token, _, _ = strings.Cut(after, `"`)
			}
			if got := listOf(t, code, body); !strings.HasPrefix(got, c.want) {
				t.Errorf("minute %d: %s is %s, want %s", c.minute, c.path, got, c.want)
			}
		}
	})
}

// TestAWatchOfAReplayHasExactlyWhatFollows a version, until something is not known.
func TestAWatchOfAReplayHasExactlyWhatFollows(t *testing.T) {
	for _, c := range []struct {
		minute      int
		query, want string
	}{
		{3, "resourceVersion=10", "MODIFIED b@20, DELETED c@25, ADDED d@30, MODIFIED d@33, ERROR Expired@"},
		{5, "resourceVersion=20", "DELETED c@25, ADDED d@30, MODIFIED d@33, ERROR Expired@"},
		{5, "resourceVersion=10&labelSelector=app%3Dc", "DELETED c@25, ERROR Expired@"},
		{5, "resourceVersion=0", "ADDED b@20, ADDED d@30, MODIFIED d@33, ERROR Expired@"},
		{8, "resourceVersion=33", "ERROR Gone@"},
		{11, "resourceVersion=33", "ERROR Expired@"},
		{11, "resourceVersion=40", "MODIFIED b@45, DELETED d@50"},
		{11, "resourceVersion=40&allowWatchBookmarks=true", "MODIFIED b@45, DELETED d@50, BOOKMARK @50"},
	} {
		play(t, func(ask func(string) (int, string)) {
			time.Sleep(time.Duration(c.minute-3)*time.Second + time.Millisecond)
			synctest.Wait()
			code, body := ask("/api/v1/pods?watch=1&timeoutSeconds=99&" + c.query)
			if code != http.StatusOK {
				body = `{"type":"ERROR","object":` + strings.TrimSpace(body) + `}`
			}
			if got := watchOf(t, body); got != c.want {
				t.Errorf("minute %d, %s: %s, want %s", c.minute, c.query, got, c.want)
			}
		})
	}
}

// TestAWatchThatIsTooSlowExpires rather than to lack changes, and memory is bounded.
func TestAWatchThatIsTooSlowExpires(t *testing.T) {
	o := &object{name: "o", packed: make([]byte, 1<<20)}
	l := log{floor: "9", version: "9"}
	for i := range 100 {
		l.append(change{is: o, version: fmt.Sprint(10 + i)})
	}
	if l.bytes > logBytes || len(l.changes) != logBytes>>20 {
		t.Errorf("%d changes of %d bytes are held", len(l.changes), l.bytes)
	}
	if _, ok := l.since(10); ok {
		t.Error("a watch goes on behind changes that are gone")
	}
	if _, ok := l.after(fmt.Sprint(109 - len(l.changes) - 1)); ok {
		t.Error("a watch begins before the first change")
	}
	n, ok := l.after(fmt.Sprint(109 - len(l.changes)))
	if changes, known := l.since(n); !ok || !known || len(changes) != len(l.changes) {
		t.Errorf("%d changes follow the oldest version", len(changes))
	}
}
