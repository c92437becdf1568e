package e2e

import (
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// TestTheTimelineOnTheStatusPageIsThatOfTheLog: it shows what was done and what is not known as the command that it names
// does, to those with the password alone, and no value that is redacted.
func TestTheTimelineOnTheStatusPageIsThatOfTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	p := plants{word: "planted-for-the-timeline-"}
	secrets := workload.Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"},
		Object:   of("v1", "Secret", map[string]any{"data": map[string]any{"p": base64.StdEncoding.EncodeToString([]byte(p.value()))}}),
	}
	var journal string
	s := newFixture(t, []workload.Kind{workload.Deployments, workload.ConfigMaps, secrets}, func(settings *exporter.Settings) {
		settings.Sinks = []map[string]any{{"name": "past", "history": map[string]any{"dir": dir}}}
		settings.Rule = map[string]any{"redactPaths": []string{"data.token"}}
		journal = settings.JournalDir()
	})
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), secrets, s.name, "password"))
	s.must(s.cluster.Patch(t.Context(), secrets, s.name, "password", fmt.Sprintf(`{"stringData":{"q":%q}}`, p.value())))
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "settings"))
	s.must(s.cluster.Patch(t.Context(), workload.ConfigMaps, s.name, "settings", fmt.Sprintf(`{"data":{"token":%q,"color":"<b>blue</b>"}}`, p.value())))
	s.must(s.cluster.Create(t.Context(), workload.Deployments, s.name, "web"))
	s.must(s.cluster.Patch(t.Context(), workload.Deployments, s.name, "web", `{"spec":{"replicas":2}}`))
	awaitTimeline(s, "resource=deploy&name=web", "spec.replicas: 0 → 2")
	s.must(s.exporter.Stop())
	if _, err := os.Stat(filepath.Join(journal, "timeline.url")); err == nil {
		t.Error("the password of a stopped exporter is left")
	}
	s.must(s.cluster.Patch(t.Context(), workload.Deployments, s.name, "web", `{"spec":{"replicas":7}}`))
	s.must(s.etcd.Compact(t.Context()))
	s.must(s.controlPlane.StopAPIServer()) // its watch cache remembers what etcd has forgotten
	s.must(s.controlPlane.StartAPIServer(t.Context()))
	s.must(s.exporter.Start(t.Context()))
	awaitTimeline(s, "resource=deploy&name=web", "spec.replicas: 2 → 7")
	s.must(s.cluster.Patch(t.Context(), workload.Deployments, s.name, "web", `{"spec":{"replicas":3}}`))

	page := awaitTimeline(s, "resource=deployments.apps&name=web&since=1h", "spec.replicas: 7 → 3")
	rest := page
	for _, want := range []string{"spec.replicas: 7 → 3", "spec.replicas: 2 → 7", "unknown between", "spec.replicas: 0 → 2", "added"} { // the newest first
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Errorf("no %q, or not in its place, in\n%s", want, page)
		}
		rest = after
	}
	if !strings.Contains(page, "by field manager <bdi>e2e-workload</bdi>") {
		t.Errorf("no author in\n%s", page)
	}
	for _, q := range []string{"resource=deploy&name=web", "", "resource=secrets", "resource=cm,secret"} {
		page := awaitTimeline(s, q, "added")
		s.nothingOf(&p, "the timeline of "+q, page)
		s.compareTimeline(page)
	}
	if page := awaitTimeline(s, "resource=cm", "color"); !strings.Contains(page, "&lt;b&gt;blue&lt;/b&gt;") || !strings.Contains(page, "data.token") {
		t.Error(page)
	}

	address, password := s.timelineAddress()
	for _, path := range []string{"/", "/sink?name=past", "/status.json", "/metrics", "/readyz?verbose"} {
		if _, text, err := s.exporter.Get(t.Context(), path); err != nil || strings.Contains(text, password) {
			t.Errorf("%s: %v %s", path, err, text)
		}
	}
	if code, text, err := s.exporter.Get(t.Context(), "/history?namespace="+s.name); err != nil || code != http.StatusUnauthorized || strings.Contains(text, "web") {
		t.Errorf("without a password: %d %v %s", code, err, text)
	}
	if info, err := os.Stat(filepath.Join(journal, "timeline.url")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	for query, want := range map[string]string{"?resource=deploymnts": "did you mean deployments", "?since=noon": "no moment", "?sink=other": "no such sink", "?name=web": "no type"} {
		if code, text := s.get(address + query); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", query, code, text)
		}
	}
	s.must(os.Rename(dir, dir+".away"))
	if code, text := s.get(address + "?namespace=" + s.name); code != http.StatusServiceUnavailable || !strings.Contains(text, "cannot be read") {
		t.Errorf("without a folder: %d %s", code, text)
	}
	if log := s.exporter.LogTail(); strings.Contains(log, password) {
		t.Errorf("the password is in the log:\n%s", log)
	}
}

// timelineAddress is what the command prints.
func (s *fixture) timelineAddress() (address, password string) {
	s.t.Helper()
	address = strings.TrimSpace(s.ask("history", "page", "--config", s.exporter.Config()))
	u, err := url.Parse(address)
	s.must(err)
	password, _ = u.User.Password()
	return address, password
}

// awaitTimeline asks for a timeline of the namespace until it has a text.
func awaitTimeline(s *fixture, query, want string) (page string) {
	s.t.Helper()
	address, _ := s.timelineAddress()
	await.Condition(s.t, "the timeline", arriveWithin, lookEvery, func() string {
		var code int
		if code, page = s.get(address + "?namespace=" + s.name + "&" + query); code != http.StatusOK || !strings.Contains(page, want) {
			return fmt.Sprint(code, page)
		}
		return ""
	})
	return page
}

// get asks for an address with a password.
func (s *fixture) get(address string) (code int, text string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, address, nil)
	s.must(err)
	answer, err := http.DefaultClient.Do(request)
	s.must(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	s.must(err)
	return answer.StatusCode, string(body)
}

var (
	timelineCommand = regexp.MustCompile(`<code>exporter (.*)</code>`)
	timelineTime    = regexp.MustCompile(`<li><span class="dim">(\S+)</span> <span class="\S+">(\S+)</span>`)
)

// compareTimeline has the command that a page names print the same entries.
func (s *fixture) compareTimeline(page string) {
	s.t.Helper()
	var shown, printed []string
	for _, m := range timelineTime.FindAllStringSubmatch(page, -1) {
		shown = append(shown, html.UnescapeString(m[1]))
	}
	command := timelineCommand.FindStringSubmatch(page)
	if command == nil {
		s.t.Fatalf("no command in\n%s", page)
	}
	for line := range strings.Lines(s.ask(strings.Fields(html.UnescapeString(command[1]))...)) {
		printed = append(printed, strings.Fields(line)[0])
	}
	slices.Reverse(printed)
	if len(shown) == 0 || !slices.Equal(shown, printed) {
		s.t.Errorf("the page has %q, and %s prints %q", shown, command[1], printed)
	}
}
