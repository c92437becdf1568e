package admin

import (
	"flag"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/kubecdc/kubecdc/deploy/monitoring"
	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

func TestMain(m *testing.M) { leaks.Main(m) }

// statusOf returns a status of a part of a component, or of the whole where part is "".
func statusOf(component, part string, p condition.Problem) condition.Status {
	s := condition.NewStatus(component, p)
	if part != "" {
		s.Members = []string{part}
	}
	return s
}

// lineOf returns the line of /readyz for a status.
func lineOf(s condition.Status) string {
	mark := map[condition.Severity]string{condition.Degraded: "[!]", condition.NotReady: "[-]"}[s.Severity]
	return mark + s.Name() + " " + s.Text(time.Now()) + "\n"
}

func sample() Snapshot {
	s := Snapshot{
		Conditions: []condition.Status{{Component: "configuration"}, {Component: "journal"}, {Component: "journal"}, {Component: "discovery"},
			statusOf("resource", "pods", condition.Problem{}), statusOf("resource", "nodes", condition.Problem{})},
		Resources: []source.Status{
			{Scope: "pods", State: source.Live, Position: "42", Known: 7, Events: 9, Changes: map[event.Type]uint64{event.Added: 4, event.Deleted: 1}},
			{Scope: "nodes", State: source.Forbidden},
		},
		Routes:  []shape.RouteStats{{Name: "routes[0]", Sent: map[string]uint64{"main": 6}, Dropped: map[string]uint64{"other": 11}, Failed: 1, Failure: "no such key"}},
		Journal: journal.Stat{Oldest: 1, Newest: 5, RetainedBytes: 900, MaxBytes: 10 << 30},
	}
	s.AddSink(SinkStatus{Name: "main", Kind: "kafka", Stats: delivery.Stats{
		Delivered: 3, NotRouted: 8, Low: 3, Lag: time.Minute, WindowBytes: 2048, WindowLimit: 16 << 20, Lanes: 4,
	}}, []condition.Status{{Component: "sink/main"}})
	return s
}

func get(t *testing.T, s Snapshot, path string) *httptest.ResponseRecorder {
	t.Helper()
	return ask(t, s, path, "")
}

// ask is get with a header Accept.
func ask(t *testing.T, s Snapshot, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	server := New(Options{Version: "v1.2.3", Snapshot: func() Snapshot { return s }})
	server.ObservePublish("main", time.Millisecond)
	server.ObserveDelivery("main", 3*time.Millisecond)
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	server.handler.ServeHTTP(w, r)
	return w
}

func TestReadyMeansNoCheckFails(t *testing.T) {
	s := sample()
	if w := get(t, s, "/readyz"); w.Code != http.StatusOK || w.Body.String() != "ok\n" {
		t.Errorf("well: %d %q", w.Code, w.Body)
	}
	const all = "[+]configuration ok\n[+]journal ok\n[+]discovery ok\n[+]resource/pods ok\n[+]resource/nodes ok\n[+]sink/main ok\nok\n"
	if w := get(t, s, "/readyz?verbose"); w.Code != http.StatusOK || w.Body.String() != all {
		t.Errorf("well, verbose: %d %q", w.Code, w.Body)
	}
}

// TestOneFaultIsOneConditionOnEverySurface has 180 resources that fail for one cause, and one that fails alone.
func TestOneFaultIsOneConditionOnEverySurface(t *testing.T) {
	s := sample()
	for n := range 180 {
		name := fmt.Sprintf("r%03d", n)
		cause := fmt.Sprintf("read tcp 10.0.0.1:%d:\n connection reset", 40000+n)
		s.Conditions = append(s.Conditions, statusOf("resource", name,
			condition.Problem{Code: condition.APIServerUnreachable, Cause: cause, Remedy: "look at the API server at https://api"}))
	}
	alone := statusOf("resource", "secrets", condition.Problem{Code: condition.ResourceForbidden, Cause: "may not list"})
	s.Conditions = append(s.Conditions, alone)
	const fault = "180 (r000, r001, r002 and 177 more): read tcp 10.0.0.1:40000: connection reset"
	const line = "[-]resource APIServerUnreachable: " + fault + ". Effect: nothing is read from the API server. " +
		"Remedy: look at the API server at https://api.\n"
	w := get(t, s, "/readyz")
	if got := w.Body.String(); w.Code != http.StatusServiceUnavailable || got != line+lineOf(alone)+"not ready: 1 check failed\n" {
		t.Errorf("%d %q", w.Code, got)
	}
	if body := get(t, s, "/").Body.String(); strings.Count(body, fault) != 1 || !strings.Contains(body, "<code>APIServerUnreachable</code>") {
		t.Errorf("the page does not show it once:\n%s", body)
	}
	body := get(t, s, "/metrics").Body.String()
	for _, series := range []string{
		`kubecdc_ready 0`,
		`kubecdc_condition{code="APIServerUnreachable",component="resource",severity="notReady"} 180`,
		`kubecdc_condition{code="ResourceForbidden",component="resource",severity="degraded"} 1`,
	} {
		if !strings.Contains(body, "\n"+series+"\n") {
			t.Errorf("no series %s", series)
		}
	}
}

// TestEveryCodeHasTheSameTextOnEverySurface gives every code to a component, and looks for its cause and its remedy.
func TestEveryCodeHasTheSameTextOnEverySurface(t *testing.T) {
	for _, k := range condition.Kinds() {
		if k.Severity == condition.OK { // an event
			continue
		}
		s := sample()
		fault := statusOf("journal", "", condition.Problem{Code: k.Code, Cause: "a cause"})
		fault.Since, fault.Deadline = time.Now(), time.Now().Add(4*time.Minute)
		s.Conditions = append(s.Conditions, fault)
		w := get(t, s, "/readyz")
		if got := w.Body.String(); !strings.HasPrefix(got, lineOf(fault)) || (w.Code != http.StatusOK) != (k.Severity == condition.NotReady) {
			t.Errorf("%s: %d %q", k.Code, w.Code, got)
		}
		if w := get(t, s, "/livez"); w.Code != http.StatusOK {
			t.Errorf("%s: a restart would not help, and liveness asks for one: %d", k.Code, w.Code)
		}
		page := html.UnescapeString(get(t, s, "/").Body.String())
		for _, text := range []string{"<code>" + string(k.Code) + "</code>", "a cause", k.Effect + "; history is lost in about 4 min", k.Remedy} {
			if !strings.Contains(page, text) {
				t.Errorf("%s: no %q on the page", k.Code, text)
			}
		}
		metrics, labels := get(t, s, "/metrics").Body.String(), fmt.Sprintf(`{code=%q,component="journal",severity=%q}`, k.Code, k.Severity)
		for _, series := range []string{"kubecdc_condition" + labels + " 1\n", "kubecdc_condition_deadline_timestamp_seconds" + labels} {
			if !strings.Contains(metrics, "\n"+series) {
				t.Errorf("%s: no series %s", k.Code, series)
			}
		}
	}
}

// TestEveryRemedyLinksToItsRunbook: to an anchor that the page of runbooks has, with the remedy; so has each alert.
func TestEveryRemedyLinksToItsRunbook(t *testing.T) {
	runbooks := html.UnescapeString(get(t, sample(), "/runbooks").Body.String())
	linked := regexp.MustCompile(`<a href="runbooks#(\w+)">more on (\w+)</a>`)
	for _, k := range condition.Kinds() {
		s := sample()
		s.Conditions = append(s.Conditions, statusOf("journal", "", condition.Problem{Code: k.Code, Cause: "a cause", Severity: condition.Degraded}))
		if found := linked.FindStringSubmatch(get(t, s, "/").Body.String()); found == nil || found[1] != string(k.Code) || found[2] != string(k.Code) {
			t.Errorf("%s: the link is %q", k.Code, found)
		}
		_, section, _ := strings.Cut(runbooks, fmt.Sprintf(`<h2 id=%q>`, k.Code))
		if section, _, _ = strings.Cut(section, "</section>"); !strings.Contains(section, k.Message) || !strings.Contains(section, k.Remedy) {
			t.Errorf("%s: the runbook is %q", k.Code, section)
		}
	}
	for _, a := range monitoring.Alerts {
		if !strings.Contains(runbooks, fmt.Sprintf(`<h2 id=%q>`, a.Name)) {
			t.Errorf("%s has no runbook", a.Name)
		}
	}
}

// TestMetricsOfSingleFaultsFollowTheConditions covers those that know more than kubecdc_condition.
func TestMetricsOfSingleFaultsFollowTheConditions(t *testing.T) {
	s := sample()
	of := func(component, part string, code condition.Code) condition.Status {
		return statusOf(component, part, condition.Problem{Code: code})
	}
	s.Conditions = append(s.Conditions, of("namespace", "a", condition.NamespaceMissing), of("namespace", "f", condition.NamespaceUnknown),
		of("namespace", "g", ""), of("rule/pods", "", condition.RulePaused), of("rule/nodes", "", ""))
	main := SinkStatus{Name: "main", Stats: delivery.Stats{FailingLanes: []condition.Status{of("sink/main", "topic/3", condition.SinkTimeout)}}}
	s.Sinks = nil
	s.AddSink(main, []condition.Status{of("sink/main", "", condition.DeadLettersHeld), of("sink/main", "lane", condition.DeadLettersHeld), of("sink/main", "", condition.SinkTimeout)})
	body := get(t, s, "/metrics").Body.String()
	for _, series := range []string{
		`kubecdc_rule_paused{rule="pods"} 1`, `kubecdc_rule_paused{rule="nodes"} 0`,
		`kubecdc_namespace_missing{name="a"} 1`, `kubecdc_namespace_missing{name="g"} 0`,
		`kubecdc_sink_dead_letters_held{sink="main"} 1`, `kubecdc_sink_ready{sink="main"} 0`,
		`kubecdc_sink_lane_failing_since_seconds{code="SinkTimeout",sink="main"} 0`,
	} {
		if !strings.Contains(body, "\n"+series+"\n") {
			t.Errorf("no series %s", series)
		}
	}
	if strings.Contains(body, `kubecdc_namespace_missing{name="f"}`) {
		t.Error("it is not known whether the namespace f exists")
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
		`kubecdc_sink_delivery_seconds_bucket{sink="main",le="0.0025"} 0`,
		`kubecdc_sink_delivery_seconds_bucket{sink="main",le="0.005"} 1`,
		`kubecdc_sink_delivered_total{sink="main"} 3`,
		`kubecdc_sink_backlog_changes{sink="main"} 2`,
		`kubecdc_sink_passed_total{sink="main"} 8`,
		`kubecdc_route_sent_total{route="routes[0]",sink="main"} 6`,
		`kubecdc_route_dropped_total{route="routes[0]",sink="other"} 11`,
		`kubecdc_route_filter_errors_total{route="routes[0]"} 1`,
		`kubecdc_journal_newest_offset 5`,
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

// TestOpenMetricsIsServedOnRequest has the reference parser of OpenMetrics, which is strict, read every family, and
// compares the samples with those of the Prometheus text format.
func TestOpenMetricsIsServedOnRequest(t *testing.T) {
	require.Integration(t)
	python, err := build.Python(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := sample()
	s.Audit, s.Replica = &AuditStatus{Stats: attribution.Stats{Unresolved: map[attribution.Reason]uint64{"late": 1}}}, &ReplicaStatus{}
	s.Rules = []shape.Stats{{Name: "resources[0]", Dropped: map[string]uint64{"filter": 2}}}
	s.Conditions = append(s.Conditions, statusOf("namespace", "shop", condition.Problem{Code: condition.NamespaceMissing, LosesHistory: true}))
	open := ask(t, s, "/metrics", "application/openmetrics-text; version=1.0.0; charset=utf-8")
	if kind := open.Header().Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") {
		t.Errorf("Content-Type is %q", kind)
	}
	if !strings.HasSuffix(open.Body.String(), "\n# EOF\n") {
		t.Error("the end is not marked")
	}
	if strings.Contains(open.Body.String(), " # {") {
		t.Error("there are exemplars")
	}
	plain := ask(t, s, "/metrics", "")
	if kind := plain.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("without a wish, Content-Type is %q", kind)
	}
	parse := func(module, text string) []string {
		parser := exec.CommandContext(t.Context(), python, "-c", "import sys; from prometheus_client."+module+` import text_string_to_metric_families as parse
for family in parse(sys.stdin.read()):
    for s in family.samples:
        if s.name.startswith("kubecdc_"):
            print(s.name, sorted((k, float(v) if k == "le" else v) for k, v in s.labels.items()))`)
		parser.Stdin = strings.NewReader(text)
		out, err := parser.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", module, err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		slices.Sort(lines)
		return lines
	}
	if got, want := parse("openmetrics.parser", open.Body.String()), parse("parser", plain.Body.String()); !slices.Equal(got, want) || len(got) < len(allFamilies()) {
		t.Errorf("in OpenMetrics\n%s\nin the Prometheus text format\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestACursorAheadOfTheJournalIsNoBacklog(t *testing.T) {
	s := Snapshot{Journal: journal.Stat{Newest: 4}} // an older look at the journal than at the sink
	s.AddSink(SinkStatus{Stats: delivery.Stats{Low: 9}}, nil)
	if got := s.Sinks[0].Backlog; got != 0 {
		t.Errorf("a backlog of %d", got)
	}
}

func TestThePageEscapesWhatItShows(t *testing.T) {
	const evil = `<script>alert("x")</script>`
	s := sample()
	all := statusOf(evil, evil, condition.Problem{Code: evil, Cause: evil, Effect: evil, Remedy: evil})
	all.Severity = condition.NotReady
	ofSink := all
	ofSink.Component = "sink/" + evil
	s.Conditions = []condition.Status{all, ofSink}
	s.Resources[0].Scope, s.Resources[0].State, s.Resources[0].Condition, s.Resources[0].Position = evil, evil, all, evil
	s.Sinks[0].Name, s.Sinks[0].Kind, s.Sinks[0].FailingLanes = evil, evil, s.Conditions
	s.Cluster = ClusterStatus{Name: evil, UID: evil}
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

func TestThePageOfASinkListsItsLanes(t *testing.T) {
	s := sample()
	s.Sinks[0].Lanes, s.Sinks[0].LanesFailing = 62, 1
	s.Sinks[0].ListedLanes = []delivery.LaneStatus{
		{Name: "k8s.pods/3", Failing: true, Queued: 1234, Oldest: time.Now().Add(-time.Hour)}, {Name: "k8s.pods/4", Lagging: true}, {Name: "k8s.pods/5"},
	}
	body := get(t, s, "/sink?name=main").Body.String()
	for _, want := range []string{
		`<th scope="row">k8s.pods/3</th><td><span class="badge bad">failing</span></td><td class="n mid">1,234</td><td class="n">1h0m0s ago</td>`,
		`<th scope="row">k8s.pods/4</th><td><span class="badge wait">catching up</span>`, `<th scope="row">k8s.pods/5</th><td><span class="badge good">up to date</span>`,
		`62 lanes, <strong>1 failing</strong>; 3 are listed, those with the oldest changes.`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

func TestThePageShowsAttribution(t *testing.T) {
	s := sample()
	if body := get(t, s, "/").Body.String(); strings.Contains(body, "Attribution") {
		t.Error("the page shows attribution without audit events")
	}
	s.Audit = &AuditStatus{Stats: attribution.Stats{Attributed: 1234, Unresolved: map[attribution.Reason]uint64{"late": 56}}, Refused: 7}
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
		if name, _, _ = strings.Cut(name, " "); ok && !strings.Contains(page, "| `kubecdc_"+name+"` ") {
			t.Errorf("kubecdc_%s is served and not documented", name)
		}
	}
}

func metricsPage() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Generated by "make generate" from internal/admin/metrics.go: do not edit. -->

Served at ` + "`/metrics`" + ` of ` + "`admin.listen`" + `, in the Prometheus text format or OpenMetrics, with the usual ` + "`go_`" + ` and ` + "`process_`" + `
families. A name that ends in ` + "`_total`" + ` is a counter, which starts at 0 with the process; others are gauges, but for histograms.
All values of a scrape come from one look at the exporter. [Alerts](alerts.md) use them.

| metric (labels) | meaning |
|---|---|
`)
	var rows []string
	row := func(name, help string, labels ...string) {
		if len(labels) > 0 {
			name += "` (" + strings.Join(labels, ", ") + ")"
		} else {
			name += "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s | %s |\n", name, help))
	}
	for _, m := range allFamilies() {
		if strings.HasSuffix(m.name, "_total") != (valueType(m.name) == prometheus.CounterValue) {
			panic(m.name + ": the page takes its type from its name")
		}
		row(m.name, m.help, m.labels...)
	}
	row(publishSeconds.Name, "Histogram: "+publishSeconds.Help, "sink")
	row(deliverySeconds.Name, "Histogram: "+deliverySeconds.Help, "sink")
	row(buildInfo.Name, buildInfo.Help, "version", "goversion")
	slices.Sort(rows)
	b.WriteString(strings.Join(rows, ""))
	return b.String()
}

// fillFields gives every slice and map in a value one element, so that every field has a series.
func fillFields(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillFields(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillFields(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillFields(v.Field(i))
			}
		}
	default: // it has one value
	}
}

// allFamilies returns the families that are read from a snapshot, each as often as it is defined.
func allFamilies() []metric {
	all, s := slices.Clone(derivedMetrics), Snapshot{}
	fillFields(reflect.ValueOf(&s).Elem())
	walkFields(reflect.ValueOf(s), nil, nil, func(tag reflect.StructTag, names, _ []string, _ any) {
		all = append(all, metric{name: tag.Get("metric"), help: tag.Get("help"), labels: names})
	})
	return all
}

// TestEachMetricIsThereOnce: /metrics answers with an error if one is there twice.
func TestEachMetricIsThereOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range allFamilies() {
		if seen[m.name] {
			t.Errorf("%s is there twice", m.name)
		}
		seen[m.name] = true
	}
}
