package admin

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

func TestMain(m *testing.M) { leaks.Main(m) }

func sample() Snapshot {
	return Snapshot{
		Resources: []ResourceStatus{
			{Name: "pods", State: "live", Since: time.Now(), Position: "42", Known: 7, Events: 9, Changes: map[string]uint64{"added": 4, "deleted": 1}},
			{Name: "nodes", State: "forbidden", Reason: "may not list nodes"},
		},
		Routes: []RouteStatus{{Name: "routes[0]", Sent: map[string]uint64{"main": 6}, Dropped: map[string]uint64{"other": 11}, Failed: 1, Failure: "no such key"}},
		Sinks: []SinkStatus{{Name: "main", Kind: "kafka", Delivered: 3, Passed: 8, Low: 3, OldestObserved: time.Now().Add(-time.Minute),
			WindowBytes: 2048, WindowLimit: 16 << 20, Lanes: 4}},
		Journal: JournalStatus{Oldest: 1, Newest: 5, RetainedBytes: 900, MaxBytes: 10 << 30},
	}
}

func get(t *testing.T, s Snapshot, path string) *httptest.ResponseRecorder {
	t.Helper()
	server := New(Options{Version: "v1.2.3", Snapshot: func() Snapshot { return s }})
	server.ObservePublish("main", time.Millisecond)
	server.ObserveDelivery("main", 3*time.Millisecond)
	w := httptest.NewRecorder()
	server.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestReadyMeansNoCheckFails(t *testing.T) {
	s := sample()
	if w := get(t, s, "/readyz"); w.Code != http.StatusOK || w.Body.String() != "ok\n" {
		t.Errorf("well: %d %q", w.Code, w.Body)
	}
	const all = "[+]configuration ok\n[+]journal ok\n[+]cluster ok\n[+]clock ok\n[+]discovery ok\n[+]resource/pods ok\n[+]resource/nodes ok\n[+]sink/main ok\nok\n"
	if w := get(t, s, "/readyz?verbose"); w.Code != http.StatusOK || w.Body.String() != all {
		t.Errorf("well, verbose: %d %q", w.Code, w.Body)
	}
}

func TestSkippedTypesAreNamedAndDoNotCount(t *testing.T) {
	s := sample()
	s.Resources[0].Degraded = "forbidden: may not\nlist"
	if w := get(t, s, "/readyz"); w.Code != http.StatusOK || w.Body.String() != "[!]resource/pods forbidden: may not list\nok\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

func TestNamespacesThatDoNotExistAreNamedOnceAndDoNotCount(t *testing.T) {
	s := sample()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.Namespaces = append(s.Namespaces, NamespaceStatus{Name: name, Missing: true})
	}
	s.Namespaces = append(s.Namespaces, NamespaceStatus{Name: "f", Unknown: "forbidden"}, NamespaceStatus{Name: "g"})
	const line = "[!]namespaces a, b, c and 2 more: named by a rule, and there is no such namespace; " +
		"create it (it is watched from then on), or correct namespaces.include\n"
	w := get(t, s, "/readyz")
	if got := w.Body.String(); w.Code != http.StatusOK || !strings.HasPrefix(got, line+"[!]namespaces f: ") || strings.Count(got, "\n") != 3 {
		t.Errorf("%d %q", w.Code, got)
	}
	body := get(t, s, "/metrics").Body.String()
	for series, want := range map[string]int{`{name="a"} 1`: 1, `{name="g"} 0`: 1, `{name="f"}`: 0} {
		if n := strings.Count(body, "\nkubecdc_namespace_missing"+series); n != want {
			t.Errorf("%d of %s", n, series)
		}
	}
}

func TestKeptDeadLettersAreShownAndDoNotCount(t *testing.T) {
	s := sample()
	s.Sinks[0].Held = "dead letters wait for sink bus: not connected"
	if w := get(t, s, "/readyz"); w.Code != http.StatusOK || w.Body.String() != "[!]sink/main dead letters wait for sink bus: not connected\nok\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if body := get(t, s, "/").Body.String(); !strings.Contains(body, `<p class="why">dead letters wait for sink bus: not connected</p>`) {
		t.Errorf("the page is silent:\n%s", body)
	}
	if body := get(t, s, "/metrics").Body.String(); !strings.Contains(body, "\nkubecdc_sink_dead_letters_held{sink=\"main\"} 1\n") {
		t.Errorf("the metrics are silent:\n%s", body)
	}
}

func TestNotReadyGivesReasons(t *testing.T) {
	for what, tc := range map[string]struct {
		spoil func(*Snapshot)
		line  string
	}{
		"journal":   {func(s *Snapshot) { s.Journal.Blocked = "the disk is full:\nfree some" }, "[-]journal the disk is full: free some\n"},
		"discovery": {func(s *Snapshot) { s.Discovery, s.Resources = "connection refused", nil }, "[-]discovery connection refused\n"},
		"resource":  {func(s *Snapshot) { s.Resources[0].NotReady = "first list" }, "[-]resource/pods first list\n"},
		"sink":      {func(s *Snapshot) { s.Sinks[0].NotReady = "no broker answers" }, "[-]sink/main no broker answers\n"},
	} {
		t.Run(what, func(t *testing.T) {
			s := sample()
			tc.spoil(&s)
			if w := get(t, s, "/readyz"); w.Code != http.StatusServiceUnavailable || w.Body.String() != tc.line+"not ready: 1 check failed\n" {
				t.Errorf("%d %q", w.Code, w.Body)
			}
			if w := get(t, s, "/livez"); w.Code != http.StatusOK {
				t.Errorf("a restart would not help, and liveness asks for one: %d", w.Code)
			}
		})
	}
}

func TestAFaultOfManyResourcesIsOneLine(t *testing.T) {
	s := sample()
	for n := range 180 {
		s.Resources = append(s.Resources, ResourceStatus{Name: fmt.Sprintf("r%03d", n), State: "unreachable", NotReady: fmt.Sprintf("read tcp 10.0.0.1:%d: connection reset; look at the API server at https://api", 40000+n)})
	}
	s.Resources = append(s.Resources, ResourceStatus{Name: "secrets", Degraded: "forbidden"})
	const fault = "180 of 183 (r000, r001, r002 and 177 more): read tcp 10.0.0.1:40000: connection reset; look at the API server at https://api"
	const line = "[-]resources " + fault + "\n"
	w := get(t, s, "/readyz")
	if got := w.Body.String(); w.Code != http.StatusServiceUnavailable || got != line+"[!]resource/secrets forbidden\nnot ready: 1 check failed\n" {
		t.Errorf("%d %q", w.Code, got)
	}
	if n := strings.Count(get(t, s, "/readyz?verbose").Body.String(), "[-]resource/r"); n != 180 {
		t.Errorf("verbose names %d resources", n)
	}
	if body := get(t, s, "/").Body.String(); strings.Count(body, fault) != 1 {
		t.Errorf("the page does not say it once:\n%s", body)
	}
	if body := get(t, s, "/metrics").Body.String(); !strings.Contains(body, "\nkubecdc_ready 0\n") {
		t.Errorf("the metrics call it ready:\n%s", body)
	}
}

func TestMetricsMatchTheSnapshot(t *testing.T) {
	body := get(t, sample(), "/metrics").Body.String()
	for _, line := range []string{
		`kubecdc_ready 1`,
		`kubecdc_resource_known_objects{resource="pods"} 7`,
		`kubecdc_resource_changes_total{resource="pods",type="added"} 4`,
		`kubecdc_resource_state{resource="nodes",state="forbidden"} 1`,
		`kubecdc_resource_state{resource="nodes",state="live"} 0`,
		`kubecdc_resources{state="live"} 1`,
		`kubecdc_resources{state="unreachable"} 0`,
		`kubecdc_discovery_known 1`,
		`kubecdc_sink_delivery_seconds_bucket{sink="main",le="0.0025"} 0`,
		`kubecdc_sink_delivery_seconds_bucket{sink="main",le="0.005"} 1`,
		`kubecdc_sink_delivered_total{sink="main"} 3`,
		`kubecdc_sink_backlog_changes{sink="main"} 2`,
		`kubecdc_sink_passed_total{sink="main"} 8`,
		`kubecdc_route_sent_total{route="routes[0]",sink="main"} 6`,
		`kubecdc_route_dropped_total{route="routes[0]",sink="other"} 11`,
		`kubecdc_route_filter_errors_total{route="routes[0]"} 1`,
		`kubecdc_journal_newest_offset 5`,
		`kubecdc_journal_blocked 0`,
		`kubecdc_sink_publish_seconds_count{sink="main"} 1`,
		`go_goroutines `,
		`kubecdc_build_info{goversion="`,
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("no line %s", line)
		}
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "kubecdc_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestAnAPIServerThatNeverAnsweredShowsInMetrics: no resource is known then, so no series of a resource can show it.
func TestAnAPIServerThatNeverAnsweredShowsInMetrics(t *testing.T) {
	body := get(t, Snapshot{Discovery: "https://10.0.0.1: connection refused"}, "/metrics").Body.String()
	for _, line := range []string{"kubecdc_discovery_known 0", "kubecdc_ready 0", `kubecdc_resources{state="live"} 0`} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

// TestPromtoolFindsNothingToComplainOf gives promtool what is served, the families of Go and of the process included.
func TestPromtoolFindsNothingToComplainOf(t *testing.T) {
	require.Integration(t)
	promtool, err := build.Promtool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	check.Stdin = get(t, sample(), "/metrics").Body
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestLagGrowsFromTheOldestChangeNotDelivered(t *testing.T) {
	now := time.Now()
	if got := (SinkStatus{OldestObserved: now.Add(-3 * time.Second)}).lagAt(now); got != 3*time.Second {
		t.Errorf("lag %v", got)
	}
	for what, s := range map[string]SinkStatus{"nothing waits": {}, "a clock that was set back": {OldestObserved: now.Add(time.Hour)}} {
		if got := s.lagAt(now); got != 0 {
			t.Errorf("%s: lag %v", what, got)
		}
	}
	if got := (JournalStatus{Newest: 4}).undeliveredOf(SinkStatus{Low: 9}); got != 0 {
		t.Errorf("a cursor ahead of an older snapshot of the journal gave a backlog of %d", got)
	}
}

func TestThePageEscapesWhatItShows(t *testing.T) {
	const evil = `<script>alert("x")</script>`
	s := sample()
	s.Resources[0].Name, s.Resources[0].State, s.Resources[0].Reason, s.Resources[0].Position = evil, evil, evil, evil
	s.Sinks[0].Name, s.Sinks[0].Kind, s.Sinks[0].Reason, s.Sinks[0].NotReady, s.Sinks[0].Held = evil, evil, evil, evil, evil
	s.Journal.Blocked = evil
	s.Cluster = ClusterStatus{Name: evil, UID: evil, Unchecked: evil}
	s.Sinks[0].Trouble = []FailingLane{{Lane: evil, Reason: evil}}
	for _, path := range []string{"/", "/resource?name=" + url.QueryEscape(evil), "/sink?name=" + url.QueryEscape(evil)} {
		w := get(t, s, path)
		if body := w.Body.String(); w.Code != http.StatusOK || strings.Contains(body, "<script>") || !strings.Contains(body, "&lt;script&gt;") {
			t.Errorf("%s: %d %s", path, w.Code, body)
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy %q", path, csp)
		}
	}
}

func TestThePageShowsWhatRoutesDrop(t *testing.T) {
	body := get(t, sample(), "/").Body.String()
	for _, part := range []string{"<strong>routes[0]</strong>", "6 to main", "11 kept from other", "no such key"} {
		if !strings.Contains(body, part) {
			t.Errorf("no %q in %s", part, body)
		}
	}
}

func TestThePageShowsAttribution(t *testing.T) {
	s := sample()
	if body := get(t, s, "/").Body.String(); strings.Contains(body, "Attribution") {
		t.Error("the page shows attribution without audit events")
	}
	s.Audit = &AuditStatus{Attributed: 1234, Unresolved: map[string]uint64{"late": 56}, Refused: 7}
	body := get(t, s, "/").Body.String()
	for _, want := range []string{"<dd>1,234</dd>", "<dt>Without a user: late</dt><dd>56</dd>", "<dt>Unknown clients refused</dt><dd>7</dd>"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page has no %s", want)
		}
	}
}

func TestThePageShowsBeforeAnythingIsKnown(t *testing.T) {
	if w := get(t, Snapshot{}, "/"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "</html>") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestOnlyKnownPathsAndReadsAreServed(t *testing.T) {
	handler := New(Options{Snapshot: sample}).handler
	for request, code := range map[string]int{"GET /debug/pprof/": 404, "GET /x": 404, "POST /readyz": 405, "DELETE /metrics": 405} {
		method, path, _ := strings.Cut(request, " ")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != code {
			t.Errorf("%s: %d, want %d", request, w.Code, code)
		}
	}
}

func TestRunServesUntilItIsStopped(t *testing.T) {
	s := New(Options{Listen: "127.0.0.1:0", Snapshot: sample})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	response, err := client.Get("http://" + s.Addr().String() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	if closed := response.Body.Close(); err != nil || closed != nil || response.StatusCode != http.StatusOK {
		t.Errorf("status %d, %v, %v", response.StatusCode, err, closed)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func TestAnAddressInUseIsNamedBeforeAnythingRuns(t *testing.T) {
	first := New(Options{Listen: "127.0.0.1:0", Snapshot: sample})
	if err := first.Listen(); err != nil {
		t.Fatal(err)
	}
	defer first.listener.Close()
	address := first.Addr().String()
	if err := New(Options{Listen: address, Snapshot: sample}).Listen(); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("got %v, want an error that names %s", err, address)
	}
}

func TestTheDefaultAddressIsLoopback(t *testing.T) {
	if got := New(Options{Snapshot: sample}).options.Listen; !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("listens on %s", got)
	}
}

// TestMetricsPageIsUpToDate compares docs/metrics.md with the metrics; both ways, since the page is made from them.
func TestMetricsPageIsUpToDate(t *testing.T) {
	const path = "../../docs/metrics.md"
	want := metricsPage()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s differs from the code; run: go generate ./internal/admin", path)
	}
}

// TestThePageListsWhatIsServed guards the one hand-made part of the page: the families that come from no table.
func TestThePageListsWhatIsServed(t *testing.T) {
	page := metricsPage()
	for line := range strings.Lines(get(t, sample(), "/metrics").Body.String()) {
		name, ok := strings.CutPrefix(line, "# TYPE kubecdc_")
		if name, _, _ = strings.Cut(name, " "); ok && !strings.Contains(page, "| `kubecdc_"+name+"` |") {
			t.Errorf("kubecdc_%s is served and not documented", name)
		}
	}
}

func metricsPage() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Generated by "make generate" from internal/admin/metrics.go: do not edit. -->

Served at ` + "`/metrics`" + ` of ` + "`admin.listen`" + ` in the Prometheus text format, beside the usual ` + "`go_`" + ` and ` + "`process_`" + ` families. Counters
start at 0 with the process. All values of one scrape come from one look at the exporter, the same that ` + "`/readyz`" + ` and the
status page take.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	var rows []string
	row := func(name, kind string, labels []string, help string) {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, strings.Join(labels, ", "), help))
	}
	for _, m := range metrics {
		kind := "gauge"
		if m.kind == prometheus.CounterValue {
			kind = "counter"
		}
		row(m.name, kind, m.labels, m.help)
	}
	row(publishName, "histogram", []string{"sink"}, publishHelp)
	row(deliveryName, "histogram", []string{"sink"}, deliveryHelp)
	row(buildName, "gauge", []string{"version", "goversion"}, buildHelp)
	slices.Sort(rows)
	b.WriteString(strings.Join(rows, ""))
	b.WriteString(`
Alerts are in [alerts.md](alerts.md), as files in ` + "`deploy/monitoring`" + `.
`)
	return b.String()
}

// TestEachMetricIsThereOnce: a name that is there twice ends the process when it starts.
func TestEachMetricIsThereOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range metrics {
		if seen[m.name] {
			t.Errorf("%s is there twice", m.name)
		}
		seen[m.name] = true
	}
}
