package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// readyWithin bounds how long the exporter may take until it is ready, or until it has stopped.
const readyWithin = 5 * time.Minute

// exporter is the program under demonstration. It can be started again and again, on the same journal.
type exporter struct {
	program string
	config  string
	log     string
	dir     string // its working directory, where configs/demo.yaml has the history
	admin   string // address of its HTTP server
	env     []string
	running *process.Process // nil while it does not run
}

// newExporter describes the exporter; nothing runs yet. Its files go into dir.
func newExporter(program, config, dir, kubeconfig, natsURL string) (*exporter, error) {
	if _, err := os.Stat(program); err != nil {
		return nil, fmt.Errorf("no exporter to run: %w; build it with \"make build\"", err)
	}
	free, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	e := &exporter{program: program, config: config, log: filepath.Join(dir, "exporter.log"), dir: dir, admin: ports.Address(free[0])}
	e.env = append(environment(os.Environ()),
		"KUBECONFIG="+kubeconfig,
		"KUBECDC_NATS_URL="+natsURL,
		"KUBECDC_JOURNAL_DIR="+filepath.Join(dir, "journal"),
		"KUBECDC_ADMIN_LISTEN="+e.admin,
	)
	return e, nil
}

// environment leaves out what would change the configuration: the user's variables are meant for the user's exporter.
func environment(from []string) []string {
	var env []string
	for _, entry := range from {
		if !strings.HasPrefix(entry, "KUBECDC_") && !strings.HasPrefix(entry, "KUBECONFIG=") {
			env = append(env, entry)
		}
	}
	return env
}

// start returns when the exporter reports ready.
func (e *exporter) start(ctx context.Context) error {
	p, err := process.Start(ctx, process.Options{
		Name: "exporter", Path: e.program, Args: []string{"run", "--config", e.config}, Env: e.env, Dir: e.dir, Log: e.log,
		Ready: e.ready, ReadyTimeout: readyWithin, Grace: readyWithin,
	})
	if err != nil {
		return err
	}
	e.running = p
	return nil
}

// kill ends the exporter by SIGKILL: it has no chance to finish anything.
func (e *exporter) kill() error {
	p := e.running
	e.running = nil
	return p.Kill()
}

// stop ends the exporter in order, by SIGTERM. One that does not run is no error.
func (e *exporter) stop() error {
	if e.running == nil {
		return nil
	}
	p := e.running
	e.running = nil
	return errors.Join(p.Stop(), p.Result())
}

// ask runs one of the exporter's commands in its directory, and returns what it prints.
func (e *exporter) ask(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, e.program, args...)
	cmd.Env, cmd.Dir = e.env, e.dir
	output, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("exporter %s: %w\n%s", strings.Join(args, " "), err, output)
	}
	return string(output), err
}

func (e *exporter) ready(ctx context.Context) error {
	_, err := e.get(ctx, "/readyz")
	return err
}

// historyWritten is a line of the metrics while the history has everything.
const historyWritten = `kubecdc_sink_backlog_changes\{sink="history"\} 0`

// awaitLive returns when the exporter watches a resource.
func (e *exporter) awaitLive(ctx context.Context, resource string) error {
	// Behind the resource's name stands what else is selected: namespaces, labels.
	return e.awaitMetric(ctx, `kubecdc_resource_state\{resource="`+regexp.QuoteMeta(resource)+`(;[^"]*)?",state="live"\} 1`)
}

// awaitMetric returns when a line of the metrics is this expression.
func (e *exporter) awaitMetric(ctx context.Context, line string) error {
	wanted := regexp.MustCompile("(?m)^" + line + "$")
	ctx, cancel := context.WithTimeout(ctx, arriveWithin)
	defer cancel()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		text, err := e.get(ctx, "/metrics")
		if err == nil && wanted.Match(text) {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("the exporter's metrics do not have %s: %w", line, errors.Join(ctx.Err(), err))
		}
	}
}

func (e *exporter) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.admin+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, bytes.TrimSpace(text))
	}
	return text, err
}

// listRequests returns how many LIST requests the running exporter has sent for what it watches.
func (e *exporter) listRequests(ctx context.Context) (int, error) {
	text, err := e.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	sum := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "kubecdc_resource_list_requests_total{") {
			continue
		}
		value, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]))
		if err != nil {
			return 0, fmt.Errorf("metric %q: %w", line, err)
		}
		sum += value
	}
	return sum, nil
}
