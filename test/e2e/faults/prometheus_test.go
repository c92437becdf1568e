package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// prometheus scrapes exporters and evaluates the shipped rules, in which minutes are seconds.
type prometheus struct {
	t       *testing.T
	address string
	targets string // the file that names them

	mu        sync.Mutex
	exporters []string // their addresses
}

// A scrape that fails takes back how long a fault has lasted, so an exporter may take its time to answer.
const scrapeConfig = `
global: {scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 500ms}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: kubecdc
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
`

// startPrometheus starts one that ends with the test.
func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	program, err := build.Prometheus(t.Context())
	must(t, err)
	free, err := ports.Free(1)
	must(t, err)
	dir := t.TempDir()
	p := &prometheus{t: t, address: ports.Address(free[0]), targets: filepath.Join(dir, "targets.json")}
	must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(quick(t, shippedRules(t))), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(scrapeConfig), 0o600))
	p.write()
	running, err := process.Start(t.Context(), process.Options{
		Name: "prometheus", Path: program, Dir: dir, Log: filepath.Join(dir, "prometheus.log"), Ready: p.ready,
		Args: []string{"--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address=" + p.address},
	})
	must(t, err)
	t.Cleanup(func() {
		if err := running.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func shippedRules(t *testing.T) string {
	t.Helper()
	root, err := build.Root()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, "deploy", "monitoring", "rules.yaml"))
	must(t, err)
	return string(text)
}

var (
	lasts     = regexp.MustCompile(`(?m)^(\s+for: )(\d+)([mh])$`)
	remembers = regexp.MustCompile(`\[(\d+)([mh])\]`)
)

// longest is for how many seconds a fault has to last at most.
const longest = 15

// quick makes the rules evaluate in a test's time: a fault lasts long enough after as many seconds as the rule has minutes,
// but for the longest ones, and an event is forgotten twelve times as late: a machine may stand still between it and the
// look at its alert, and what happens too often takes its time. Nothing else is changed.
func quick(t *testing.T, rules string) string {
	t.Helper()
	minutes := func(number, unit string) int {
		n, err := strconv.Atoi(number)
		must(t, err)
		if unit == "h" {
			n *= 60
		}
		return n
	}
	rules = lasts.ReplaceAllStringFunc(rules, func(s string) string {
		m := lasts.FindStringSubmatch(s)
		return fmt.Sprintf("%s%ds", m[1], min(longest, minutes(m[2], m[3])))
	})
	return remembers.ReplaceAllStringFunc(rules, func(s string) string {
		m := remembers.FindStringSubmatch(s)
		return fmt.Sprintf("[%ds]", 12*minutes(m[1], m[2]))
	})
}

// watch adds an exporter, at the address of its admin server.
func (p *prometheus) watch(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exporters = append(p.exporters, address)
	p.write()
}

func (p *prometheus) write() {
	text, err := json.Marshal([]map[string]any{{"targets": append([]string{}, p.exporters...)}})
	must(p.t, err)
	must(p.t, os.WriteFile(p.targets+".new", text, 0o600))
	must(p.t, os.Rename(p.targets+".new", p.targets))
}

func (p *prometheus) ready(ctx context.Context) error {
	_, err := p.get(ctx, "/-/ready")
	return err
}

func (p *prometheus) get(ctx context.Context, path string) ([]byte, error) {
	code, text, err := get(ctx, p.address, path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("prometheus %s: %d: %s", path, code, text)
	}
	return []byte(text), err
}

// sees reports whether it has a sample of an exporter that is ready.
func (p *prometheus) sees(ctx context.Context, address string) bool {
	return len(p.ask(ctx, fmt.Sprintf(`kubecdc_ready{instance=%q} == 1`, address))) > 0
}

// ask evaluates an expression, and returns a result for each of its series; none while Prometheus is too busy to answer.
func (p *prometheus) ask(ctx context.Context, expr string) []json.RawMessage {
	text, err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr))
	if err != nil {
		return nil
	}
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	must(p.t, json.Unmarshal(text, &answer))
	return answer.Data.Result
}

// alerts are the names of the alerts of an exporter with the sink or resource they are about, sorted, or of all that there
// are: "" asks for these. One that has not lasted long enough yet is followed by a question mark.
func (p *prometheus) alerts(ctx context.Context, address string) []string {
	text, err := p.get(ctx, "/api/v1/alerts")
	if err != nil {
		return []string{err.Error()} // it is too busy to answer
	}
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	must(p.t, json.Unmarshal(text, &answer))
	var names []string
	for _, a := range answer.Data.Alerts {
		if address != "" && a.Labels["instance"] != address {
			continue
		}
		name := strings.TrimPrefix(a.Labels["alertname"], "Kubecdc")
		resource, _, _ := strings.Cut(a.Labels["resource"], ";")
		if of := a.Labels["sink"] + resource; of != "" {
			name += " " + of
		}
		if a.State != "firing" {
			name += "?"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
