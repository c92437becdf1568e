package page

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

var update = flag.Bool("update", false, "write the screenshots of the docs; make screenshots")

// appearsWithin bounds how long a browser may take to show something.
const appearsWithin = 5 * time.Minute

// exporter is an admin server over made-up numbers that grow with every look.
type exporter struct {
	*admin.Server
	looks atomic.Uint64
	state func() admin.Snapshot // what the numbers are of
}

// mixed is an exporter with a little of everything that may be wrong.
func (e *exporter) mixed() admin.Snapshot {
	n, now := e.looks.Add(1), time.Now()
	changes := uint64(0)
	s := admin.Snapshot{
		Cluster: admin.ClusterStatus{Name: "prod-eu-1", UID: "49fda238-028f-4c54-84c5-ba4c1ce9a1ea"},
		Journal: journal.Stat{Oldest: 1, RetainedBytes: 3 << 30, MaxBytes: 10 << 30},
		Rules:   []shape.Stats{{Name: "resources[0]", Dropped: map[string]uint64{"filter": 3 * n}, Failed: 1, Failure: "no such key: spec"}},
		Routes:  []shape.RouteStats{{Name: "routes[0]", Sent: map[string]uint64{"main": n}, Dropped: map[string]uint64{"audit": n}}},
	}
	for i := range 100 {
		made := grown(n, i)
		changes += made
		r := source.Status{
			Scope: fmt.Sprintf("widgets%02d.a-rather-long-group-name.demo.kubecdc.io", i), State: "live", Known: 13 * i, LastEvent: now,
			Position: "4711", Events: made, Changes: map[event.Type]uint64{event.Updated: made},
		}
		if i == 40 {
			r.State, r.Condition = "unreachable", condition.NewStatus("resource", condition.Problem{
				Code: condition.APIServerUnreachable, Cause: "https://10.0.0.1:6443 does not answer: connection refused",
				Remedy: "look at the API server, and whether a firewall lets the exporter through",
			})
		}
		if i == 41 {
			r.State, r.Condition = "forbidden", condition.NewStatus("resource", condition.Problem{Code: condition.ResourceForbidden, Cause: "list is forbidden"})
		}
		r.Condition.Members, r.Condition.Since = []string{r.Scope}, now.Add(-time.Hour)
		s.Resources, s.Conditions = append(s.Resources, r), append(s.Conditions, r.Condition)
	}
	s.Journal.Newest = changes
	failingLane := condition.NewStatus("sink/main", condition.Problem{
		Code: condition.SinkFailing, Cause: "the partition has no leader", Remedy: "look at the brokers",
	})
	failingLane.Members, failingLane.Since = []string{"k8s.apps.deployments/3"}, now.Add(-time.Minute)
	for _, sink := range []admin.SinkStatus{
		{Name: "audit", Kind: "webhook", Stats: delivery.Stats{Delivered: changes, Low: changes, Lanes: 1, LastAck: now, WindowLimit: 16 << 20}},
		{
			Name: "main", Kind: "kafka", Stats: delivery.Stats{
				Delivered: changes - changes/40, Low: changes - min(changes, 1800), Lanes: 62, LanesFailing: 1, LanesLagging: 1, DeadLetters: 2, LastAck: now,
				Lag: 90 * time.Second, WindowBytes: 5 << 20, WindowLimit: 16 << 20,
				FailingLanes: []condition.Status{failingLane}, ListedLanes: lanes(now),
			},
		},
	} {
		s.AddSink(sink, sink.Conditions())
	}
	return s
}

// grown is how many changes one of the resources has made at a look: a few make many, some more at one time than at another.
func grown(look uint64, resource int) uint64 {
	busy := uint64(max(0, 7-resource)) * 16
	return look*busy + uint64(float64(4*busy)*(1+math.Sin(float64(look)/4)))
}

// lanes are some of each state.
func lanes(now time.Time) (all []delivery.LaneStatus) {
	for i, l := range []delivery.LaneStatus{{Failing: true}, {Lagging: true}, {}, {}, {}} {
		l.Name = fmt.Sprintf("k8s.apps.deployments/%d", (i+3)%5)
		if i < 3 {
			l.Queued, l.Oldest = 1200>>(3*i), now.Add(-90*time.Second>>(3*i))
		}
		all = append(all, l)
	}
	return all
}

func (e *exporter) deadLetters(string, int) ([]admin.DeadLetter, error) {
	return []admin.DeadLetter{{
		Offset: 77, Time: time.Now().Add(-time.Hour), Type: "updated", Resource: "configmaps", Object: "shop/settings",
		Reason: "message of 1,200,000 bytes is larger than max.message.bytes of the topic allows",
	}}, nil
}

// change notes one made-up change.
func (e *exporter) change(n int) {
	kinds := []string{"updated", "added", "updated", "deleted", "updated"}
	fact := fmt.Sprintf(`{"id":"x/%d","type":%q,"group":"apps","resource":"deployments","namespace":"shop","name":"web-%d","observedAt":%q,"class":"spec","actor":{"manager":"kubectl-edit"}}`,
		n, kinds[n%len(kinds)], n, time.Now().UTC().Format(time.RFC3339Nano))
	write := func(b []byte) []byte { return append(b, fact...) }
	e.ObserveChange(write, write)
}

func newExporter() *exporter {
	e := &exporter{}
	e.state = e.mixed
	e.Server = admin.New(admin.Options{
		Listen: "127.0.0.1:0", Version: "v1.2.3", Snapshot: func() admin.Snapshot { return e.state() }, DeadLetters: e.deadLetters,
		Timelines: &admin.Timelines{Ask: timeline, Password: "page"},
	})
	return e
}

// timeline is an answer with a little of everything, and longer than a screen is wide.
func timeline(_ context.Context, q admin.Question) (admin.Timeline, error) {
	if q.Resource == "deploymnts" {
		return admin.Timeline{}, fmt.Errorf("the history has no type %q; did you mean deployments?: %w", q.Resource, admin.ErrQuestion)
	}
	const web = "deployments.apps shop/web"
	return admin.Timeline{
		Older: 1342, Command: "exporter history log deployments.apps web -n shop --since 3d --until 2026-01-02T13:58:03.000+01:00 --dir s3://history/prod-eu-1",
		Entries: []admin.TimelineEntry{
			{Time: "2026-01-02T14:05:11.020+01:00", Type: "deleted", Object: web, Author: "system:serviceaccount:kube-system:generic-garbage-collector", User: true},
			{Time: "2026-01-02T14:04:11.020+01:00", Type: "gap", Object: "deployments.apps", Notes: []string{
				"unknown between 2026-01-02T14:03:00.000+01:00 and 2026-01-02T14:04:11.020+01:00: the API server no longer has the history"}},
			{Time: "2026-01-02T14:00:28.294+01:00", Type: "updated", Object: web, Author: "alice", User: true, Notes: []string{"not before 2026-01-02T13:59:58.000+01:00"},
				Changes: []string{"spec.replicas: 2 → 3", "spec.template.spec.containers[web].image: registry.example/shop/web@sha256:" + strings.Repeat("0f", 32) + " → …"}},
			{Time: "2026-01-02T13:58:03.000+01:00", Type: "found", Object: web, Author: "kubectl-client-side-apply", Notes: []string{"found by a list"}},
		},
	}, nil
}

// start runs an exporter until the test ends and returns its address.
func start(t *testing.T) (*exporter, string) {
	t.Helper()
	return startIn(t, (*exporter).mixed)
}

// startIn is start of an exporter in a state.
func startIn(t *testing.T, state func(*exporter) admin.Snapshot) (*exporter, string) {
	t.Helper()
	e := newExporter()
	e.state = func() admin.Snapshot { return state(e) }
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e, "http://" + e.Addr().String()
}

// browser returns the context of a Chromium.
func browser(t *testing.T) context.Context {
	t.Helper()
	require.Integration(t)
	program, env, err := build.Chromium(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.Env(env...), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(appearsWithin), chromedp.Flag("hide-scrollbars", false))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil { // the first one starts it, and must not have a bound of its own
		t.Fatal(err)
	}
	return ctx
}

// do runs actions in the browser.
func do(ctx context.Context, t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, appearsWithin)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// ask runs an action that has a result.
func ask[T any](ctx context.Context, t *testing.T, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, appearsWithin)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// until waits for a condition in the page.
func until(condition string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](condition, chromedp.WithPollingTimeout(appearsWithin))
}

// look sets how the page is looked at: light, dark, or in the colors of the user ("forced").
func look(width, height int64, scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		size := emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600}
		if _, err := cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride, size); err != nil {
			return err
		}
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "forced-colors", Value: "none"}}
		if scheme == "forced" {
			features[0].Value, features[1].Value = "dark", "active"
		}
		media := emulation.SetEmulatedMediaParams{Features: features}
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, media)
		return err
	})
}

func TestPageFitsEveryScreenAndIsAccessible(t *testing.T) {
	ctx := browser(t)
	e, address := start(t)
	for n := range 40 {
		e.change(n)
	}
	script, err := build.Axe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	axe, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{
		"overview": "/", "resource": "/resource?name=widgets40.a-rather-long-group-name.demo.kubecdc.io", "sink": "/sink?name=main",
		"timeline": "/history?resource=deployments.apps&namespace=shop&name=web&since=3d", "refused": "/history?resource=deploymnts&namespace=shop",
	}
	for page, path := range pages {
		for device, size := range map[string][2]int64{"phone": {360, 740}, "desktop": {1280, 900}} {
			for _, scheme := range []string{"light", "dark", "forced"} {
				t.Run(page+" "+device+" "+scheme, func(t *testing.T) {
					do(ctx, t, look(size[0], size[1], scheme), chromedp.Navigate(strings.Replace(address, "//", "//kubecdc:page@", 1)+path), until(`document.querySelector("#link, form") !== null`))
					if *pictures != "" {
						file := filepath.Join(*pictures, fmt.Sprintf("%s-%s-%s.png", page, device, scheme))
						if err := os.WriteFile(file, ask(ctx, t, chromedp.CaptureScreenshot()), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					if page == "overview" {
						do(ctx, t, until(`document.querySelectorAll("#changes li").length >= 20 && document.querySelector(".spark") !== null`))
					}
					wide := ask(ctx, t, chromedp.Evaluate[[]int](`[document.documentElement.scrollWidth, innerWidth, screen.width]`))
					if wide[0] > int(size[0]) {
						t.Errorf("%d pixels wide on a screen of %d (%v)", wide[0], size[0], wide)
					}
					for _, v := range violations(ctx, t, string(axe)) {
						t.Error(v)
					}
					if name := fmt.Sprintf("status-%s-%s-%s.png", page, device, scheme); *update && screenshots[name] {
						if page != "resource" { // the one that is shown makes no changes
							do(ctx, t, until(`document.querySelector(".spark") !== null &&
								[...document.querySelectorAll(".spark polyline")].every(line => line.getAttribute("points").split(" ").length >= 25)`))
						}
						picture(ctx, t, name)
					}
				})
			}
		}
	}
}

// screenshots are the files of the docs that "make screenshots" writes: page, device and colors.
var screenshots = map[string]bool{
	"status-overview-desktop-light.png": true, "status-overview-desktop-dark.png": true, "status-overview-phone-light.png": true,
	"status-overview-phone-dark.png": true, "status-resource-desktop-light.png": true, "status-sink-desktop-light.png": true,
}

// TestEveryScreenshotOfTheDocsIsMadeByATest, so that none of them shows a page of long ago that none can write again.
func TestEveryScreenshotOfTheDocsIsMadeByATest(t *testing.T) {
	root, err := build.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "docs", "img", "*.png"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(screenshots) {
		t.Errorf("there are %d screenshots, and %d are made", len(files), len(screenshots))
	}
	for _, file := range files {
		if !screenshots[filepath.Base(file)] {
			t.Errorf("make screenshots does not write %s", file)
		}
	}
}

// TestABackgroundTabAndAScreenReaderLearnOfAChange: title, icon and live region follow the state, of a lost connection too.
func TestABackgroundTabAndAScreenReaderLearnOfAChange(t *testing.T) {
	ctx := browser(t)
	for _, page := range []string{"/", "/sink?name=main", "/resource?name=configmaps"} {
		t.Run(page, func(t *testing.T) {
			failing := atomic.Bool{}
			t.Run("it runs", func(t *testing.T) {
				_, address := startIn(t, func(e *exporter) admin.Snapshot {
					if failing.Load() {
						return e.plain([]condition.Status{sinkAway()})
					}
					return e.plain(nil)
				})
				do(ctx, t, chromedp.Navigate(address+page), until(`document.title.startsWith("✓ Ready") && document.title.endsWith("kubecdc")`))
				do(ctx, t, chromedp.Evaluate[chromedp.Void](`
					window.heard = []; window.first = document.getElementById("icon").href;
					new MutationObserver(() => heard.push(document.getElementById("state").textContent))
						.observe(document.querySelector("[role=status]"), {childList: true, characterData: true, subtree: true}); 0`))
				shown := ask(ctx, t, chromedp.Evaluate[string](`document.querySelector(".foot").textContent`))
				do(ctx, t, until(fmt.Sprintf(`document.querySelector(".foot").textContent !== %q`, shown)))
				if heard := ask(ctx, t, chromedp.Evaluate[[]string](`heard`)); len(heard) > 0 {
					t.Errorf("nothing has changed, and a screen reader reads %q", heard)
				}
				failing.Store(true)
				do(ctx, t, until(`document.title.startsWith("✗ Not ready") && document.getElementById("icon").href !== first &&
					heard.at(-1) === "Not ready: sink/main SinkUnreachable"`))
			})
			do(ctx, t, until(`document.title === "✗ No answer · kubecdc" && heard.at(-1) === "The exporter does not answer" &&
				(document.querySelector("h1.verdict") ?? {className: "verdict bad", textContent: "No answer"}).className === "verdict bad" &&
				(document.querySelector("h1.verdict") ?? {textContent: "No answer"}).textContent === "No answer"`))
		})
	}
}

// violations are what axe finds.
func violations(ctx context.Context, t *testing.T, axe string) (all []string) {
	t.Helper()
	do(ctx, t, chromedp.Evaluate[chromedp.Void](axe+"; 0"))
	text := ask(ctx, t, chromedp.Evaluate[string](`axe.run().then(r => JSON.stringify(r.violations))`, chromedp.EvalAwaitPromise))
	var found []struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		t.Fatal(err)
	}
	for _, v := range found {
		all = append(all, fmt.Sprintf("%s: %s: %d times, for example %s: %s", v.ID, v.Help, len(v.Nodes), v.Nodes[0].HTML, v.Nodes[0].FailureSummary))
	}
	return all
}

// picture writes a screenshot for the docs.
func picture(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	root, err := build.Root()
	if err != nil {
		t.Fatal(err)
	}
	png := ask(ctx, t, chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(root, "docs", "img", name), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPageShowsChangedPathsAsTapDoes: in the notation of tap, and without what every write changes.
func TestPageShowsChangedPathsAsTapDoes(t *testing.T) {
	ctx := browser(t)
	e, address := start(t)
	do(ctx, t, chromedp.Navigate(address), until(`document.querySelector("h1.verdict").textContent.includes("eady")`))
	e.ObserveChange(sameBytes(`{"id":"x/1","type":"updated","group":"apps","resource":"deployments","namespace":"shop","name":"paths","observedAt":"2026-01-02T03:04:05Z","class":"spec",` +
		`"changed":["/metadata/generation","/metadata/managedFields/0/time","/metadata/resourceVersion","/spec/containers/[name=web]/image","/metadata/annotations/a.b~1c"]}`))
	do(ctx, t, until(`document.getElementById("changes").textContent.includes("shop/paths")`))
	text := ask(ctx, t, chromedp.Evaluate[string](`document.querySelector("#changes li").textContent`))
	for _, want := range []string{"spec.containers[web].image", "metadata.annotations[a.b/c]"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page shows %q, without %s", text, want)
		}
	}
	for _, noise := range []string{"resourceVersion", "generation", "managedFields"} {
		if strings.Contains(text, noise) {
			t.Errorf("the page shows %q, with %s", text, noise)
		}
	}
}

// sameBytes returns the same facts for both forms of a change, complete and short.
func sameBytes(facts string) (complete, short func([]byte) []byte) {
	write := func(b []byte) []byte { return append(b, facts...) }
	return write, write
}

// TestPageUpdatesItself changes the content while a browser shows it, filters by keyboard and pauses.
func TestPageUpdatesItself(t *testing.T) {
	ctx := browser(t)
	e, address := start(t)
	e.change(0)
	texts := func() string {
		return ask(ctx, t, chromedp.Evaluate[string](`document.getElementById("changes").textContent`))
	}
	do(ctx, t, look(1280, 900, "light"), chromedp.Navigate(address), until(`document.getElementById("changes").textContent.includes("shop/web-0")`))
	e.change(1)
	do(ctx, t, until(`document.querySelector("#changes li").textContent.includes("shop/web-1")`))

	before := ask(ctx, t, chromedp.Evaluate[string](`document.querySelector(".foot").textContent`))
	do(ctx, t, chromedp.Evaluate[chromedp.Void](`document.getElementById("filter").focus()`), chromedp.KeyEvent("updated -web-2"))
	for n := range 4 {
		e.change(n + 2) // web-2, web-4 and web-5 are updated, web-3 is deleted
	}
	do(ctx, t, until(`document.getElementById("changes").textContent.includes("shop/web-4")`))
	if got := texts(); strings.Contains(got, "web-1") || strings.Contains(got, "web-2") || strings.Contains(got, "web-3") {
		t.Errorf("filtered: %s", got)
	}
	do(ctx, t, until(fmt.Sprintf(`document.querySelector(".foot").textContent !== %q`, before))) // a new frame is shown
	if focused := ask(ctx, t, chromedp.Evaluate[string](`document.activeElement.id`)); focused != "filter" {
		t.Errorf("what is typed goes to %q after a new frame", focused)
	}
	do(ctx, t, chromedp.KeyEvent("\t"), chromedp.KeyEvent(" "), until(`document.getElementById("pause").getAttribute("aria-pressed") === "true"`))
	loaded := ask(ctx, t, chromedp.Evaluate[[]string](
		`performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith(location.origin) && !n.startsWith("data:"))`))
	if len(loaded) > 0 {
		t.Errorf("it loads %q", loaded)
	}
}
