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
	running *process.Process
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

// startPrometheus starts one in a new directory.
func startPrometheus(ctx context.Context, t *testing.T, dir string) *prometheus {
	t.Helper()
	program, err := build.Prometheus(ctx)
	must(t, err)
	free, err := ports.Free(1)
	must(t, err)
	must(t, os.MkdirAll(dir, 0o755))
	p := &prometheus{address: ports.Address(free[0]), targets: filepath.Join(dir, "targets.json")}
	must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(quick(t, shippedRules(t))), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(scrapeConfig), 0o600))
	p.write(t)
	p.running, err = process.Start(ctx, process.Options{
		Name: "prometheus", Path: program, Dir: dir, Log: filepath.Join(dir, "prometheus.log"), Ready: p.ready,
		Args: []string{"--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address=" + p.address},
	})
	must(t, err)
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
func (p *prometheus) watch(t *testing.T, address string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exporters = append(p.exporters, address)
	p.write(t)
}

// forget takes an exporter out again.
func (p *prometheus) forget(t *testing.T, address string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exporters = slices.DeleteFunc(p.exporters, func(one string) bool { return one == address })
	p.write(t)
}

func (p *prometheus) write(t *testing.T) {
	t.Helper()
	text, err := json.Marshal([]map[string]any{{"targets": append([]string{}, p.exporters...)}})
	must(t, err)
	must(t, os.WriteFile(p.targets+".new", text, 0o600))
	must(t, os.Rename(p.targets+".new", p.targets))
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
func (p *prometheus) sees(t *testing.T, address string) bool {
	t.Helper()
	return len(p.ask(t, fmt.Sprintf(`kubecdc_ready{instance=%q} == 1`, address))) > 0
}

// ask evaluates an expression, and returns a result for each of its series; none while Prometheus is too busy to answer.
func (p *prometheus) ask(t *testing.T, expr string) []json.RawMessage {
	t.Helper()
	text, err := p.get(t.Context(), "/api/v1/query?query="+url.QueryEscape(expr))
	if err != nil {
		return nil
	}
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	must(t, json.Unmarshal(text, &answer))
	return answer.Data.Result
}

// alerts are the names of the alerts of an exporter with the sink or resource they are about, sorted, or of all that there
// are: "" asks for these. One that has not lasted long enough yet is followed by a question mark.
func (p *prometheus) alerts(t *testing.T, address string) []string {
	t.Helper()
	text, err := p.get(t.Context(), "/api/v1/alerts")
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
	must(t, json.Unmarshal(text, &answer))
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
