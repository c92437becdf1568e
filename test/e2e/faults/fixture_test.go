package faults

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

const (
	// namedWithin bounds every wait. It is far above what it takes, and no measurement.
	namedWithin = 8 * time.Minute
	lookEvery   = 250 * time.Millisecond
	// clearWithin bounds what clearing up after a test takes.
	clearWithin = time.Minute
	// still is how many looks in a row have to find the same alerts: Prometheus has asked the exporter meanwhile.
	still = 24
)

type mapping = map[string]any

var secrets = workload.Kind{
	Resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"},
	Object: func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: mapping{"apiVersion": "v1", "kind": "Secret"}}
	},
}

// fixture is one fault's own: a namespace and an exporter with a journal, which writes into a file unless it is given
// otherwise.
type fixture struct {
	*surroundings
	t        *testing.T
	name     string
	settings exporter.Settings
	exporter *exporter.Exporter
	ended    bool // by itself, as it should
	lonely   bool // its Prometheus is its own
}

var scenes atomic.Int32

func (s *surroundings) fixture(t *testing.T) *fixture {
	t.Helper()
	c := &fixture{surroundings: s, t: t, name: fmt.Sprintf("fault-%d", scenes.Add(1))}
	c.settings = exporter.Settings{Dir: t.TempDir(), Kubeconfig: s.controlPlane.Kubeconfig()}
	c.settings.File = filepath.Join(c.settings.Dir, "changes")
	c.watch("configmaps")
	must(t, s.cluster.CreateNamespace(t.Context(), c.name))
	return c
}

// alone gives the fixture a Prometheus of its own, for alerts that name no exporter.
func (c *fixture) alone() {
	c.t.Helper()
	own := *c.surroundings
	own.prometheus = startPrometheus(c.t.Context(), c.t, c.t.TempDir())
	c.t.Cleanup(func() { check(c.t, own.prometheus.running.Stop()) })
	c.surroundings, c.lonely = &own, true
}

// watch selects resources in the fixture's namespace.
func (c *fixture) watch(resources ...string) {
	c.settings.Resources = []mapping{{"select": resources, "namespaces": mapping{"include": []string{c.name}}, "redact": "none"}}
}

// sink takes the place of the file.
func (c *fixture) sink(kind string, keys mapping, more ...mapping) {
	sink := mapping{"name": kind, kind: keys}
	for _, m := range more {
		for k, v := range m {
			sink[k] = v
		}
	}
	c.settings.Sinks = append(c.settings.Sinks, sink)
}

func (c *fixture) must(err error) {
	c.t.Helper()
	must(c.t, err)
}

// start starts the exporter, and returns when it is ready and Prometheus knows.
func (c *fixture) start() {
	c.t.Helper()
	c.prepare()
	c.must(c.exporter.Start(c.t.Context()))
	c.prometheus.watch(c.t, c.exporter.Address())
	c.await("Prometheus", func() string {
		if c.prometheus.sees(c.t, c.exporter.Address()) {
			return ""
		}
		return "no sample of " + c.exporter.Address()
	})
}

// launch starts an exporter that does not become ready.
func (c *fixture) launch() {
	c.t.Helper()
	c.prepare()
	c.must(c.exporter.Launch(c.t.Context()))
	c.prometheus.watch(c.t, c.exporter.Address())
}

func (c *fixture) prepare() {
	c.t.Helper()
	var err error
	c.exporter, err = exporter.New(c.program, c.settings)
	c.must(err)
	c.t.Cleanup(c.end)
}

// end ends the exporter, and deletes most of what the test wrote: others read it where they select everything.
func (c *fixture) end() {
	if err := c.exporter.Kill(); err != nil && !c.ended {
		c.t.Error(err)
	}
	c.prometheus.forget(c.t, c.exporter.Address())
	ctx, cancel := context.WithTimeout(context.Background(), clearWithin)
	defer cancel()
	for _, kind := range []workload.Kind{workload.ConfigMaps, secrets} {
		if err := c.cluster.Clear(ctx, kind, c.name); err != nil {
			c.t.Logf("objects are left: %v", err)
		}
	}
	if c.t.Failed() {
		c.t.Logf("the end of the exporter's log:\n%s", c.exporter.LogTail())
	}
}

// create creates an object of a kind.
func (c *fixture) create(kind workload.Kind, name string) {
	c.t.Helper()
	c.must(c.cluster.Create(c.t.Context(), kind, c.name, name))
}

// noise is the kind of ConfigMaps with so many bytes that do not compress.
func noise(bytes int) workload.Kind {
	kind := workload.ConfigMaps
	kind.Object = func() *unstructured.Unstructured {
		text := make([]byte, bytes)
		_, _ = rand.Read(text)
		o := workload.ConfigMaps.Object()
		o.Object["data"] = mapping{"noise": base64.StdEncoding.EncodeToString(text)}
		return o
	}
	return kind
}

// await waits until nothing is waited for any more; "" is nothing.
func (c *fixture) await(what string, waitingFor func() string) {
	c.t.Helper()
	await.Condition(c.t, what, namedWithin, lookEvery, waitingFor)
}

// page asks the exporter. One that does not answer has no page.
func (c *fixture) page(path string) string {
	_, text, err := get(c.t.Context(), c.exporter.Address(), path)
	if err != nil {
		return err.Error()
	}
	return text
}

// awaitNamed waits until /readyz and the status page have the line: a mark, a name and a text.
func (c *fixture) awaitNamed(line, says string) {
	c.t.Helper()
	c.await("/readyz", func() string {
		text := c.page("/readyz?verbose")
		for l := range strings.Lines(text) {
			if strings.HasPrefix(l, line) && strings.Contains(l, says) {
				return ""
			}
		}
		return fmt.Sprintf("no line %s … %s in\n%s", line, says, text)
	})
	c.await("the status page", func() string {
		var status struct {
			Problems []struct {
				Name, Reason, Code, Cause, Remedy string
				Counts                            bool
			}
		}
		text := c.page("/status.json")
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return err.Error()
		}
		for _, p := range status.Problems {
			named := strings.HasPrefix(p.Name, line[len("[-]"):]) && strings.Contains(p.Reason, says)
			shown := html.UnescapeString(c.page("/"))
			if named && p.Counts == strings.HasPrefix(line, "[-]") && p.Remedy != "" &&
				strings.Contains(shown, p.Code) && strings.Contains(shown, p.Cause) {
				return ""
			}
		}
		return fmt.Sprintf("nothing of %s … %s in %+v", line, says, status.Problems)
	})
}

// awaitWell waits until the exporter is ready and has nothing to complain of.
func (c *fixture) awaitWell() {
	c.t.Helper()
	c.await("/readyz", func() string {
		if text := c.page("/readyz"); text != "ok\n" {
			return text
		}
		return ""
	})
}

// awaitAlerts waits until these alerts fire, and no other one, nor is about to.
func (c *fixture) awaitAlerts(want []string) {
	c.t.Helper()
	same := 0
	c.await("alerts", func() string {
		got := c.prometheus.alerts(c.t, c.instance())
		if same++; !slices.Equal(got, want) {
			same = 0
		}
		if same < still {
			return fmt.Sprintf("%q, want %q", got, want)
		}
		return ""
	})
}

// untilAlert repeats an action until an alert on its frequency fires: how fast it happens
// is the machine's.
func (c *fixture) untilAlert(alert string, do func(turn int)) {
	c.t.Helper()
	turn := 0
	c.await(alert, func() string {
		if got := c.prometheus.alerts(c.t, c.instance()); !slices.Contains(got, alert) {
			do(turn)
			turn++
			return fmt.Sprintf("%q after %d turns", got, turn)
		}
		return ""
	})
}

// instance is the exporter of the expected alerts, "" for all.
func (c *fixture) instance() string {
	if c.lonely {
		return ""
	}
	return c.exporter.Address()
}

// awaitEnd waits until the exporter has ended by itself, and for its last log line.
func (c *fixture) awaitEnd(says string) {
	c.t.Helper()
	c.ended = true
	select {
	case <-c.exporter.Process().Done():
	case <-time.After(namedWithin):
		c.t.Fatalf("it runs on after %v", namedWithin)
	}
	if text := c.exporter.LogTail(); !strings.Contains(text, says) {
		c.t.Errorf("the log does not say %q", says)
	}
}

// proxied puts a proxy between the exporter and the API server.
func (c *fixture) proxied() *proxy.Proxy {
	c.t.Helper()
	p, err := proxy.Start(c.controlPlane.APIServers()[0].Address())
	c.must(err)
	c.t.Cleanup(func() { check(c.t, p.Close()) })
	path := filepath.Join(c.settings.Dir, "kubeconfig")
	c.must(p.Kubeconfig(c.settings.Kubeconfig, path))
	c.settings.Kubeconfig = path
	return p
}

// behind puts a gateway there, which understands the requests.
func (c *fixture) behind() *proxy.Gateway {
	c.t.Helper()
	g, err := proxy.StartGateway(c.controlPlane.APIServers()[0].Address(), c.controlPlane.CAFile())
	c.must(err)
	c.t.Cleanup(g.Close)
	path := filepath.Join(c.settings.Dir, "kubeconfig")
	c.must(g.Kubeconfig(c.settings.Kubeconfig, path))
	c.settings.Kubeconfig = path
	return g
}

// write replaces a file in the fixture's directory at once, and returns its path.
func (c *fixture) write(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.settings.Dir, name)
	c.must(os.WriteFile(path+".new", []byte(text), 0o600))
	c.must(os.Rename(path+".new", path))
	return path
}

// command runs a command of the exporter, and returns its exit code and what it wrote.
func (c *fixture) command(args ...string) (code int, out string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), namedWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, args...)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		c.t.Fatalf("exporter %v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// background runs something until the fault is over.
func (c *fixture) background(run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	c.t.Cleanup(func() {
		cancel()
		<-ended
	})
}
