package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
)

const (
	every    = 20 * time.Millisecond // between two changes
	look     = 2 * time.Millisecond
	patience = time.Minute // for one change, or one reload
	resting  = 100         // changes before the first reload
)

// measurement is how long changes waited.
type measurement struct {
	cluster  *cluster
	exporter *pipeline.Exporter
	changes  string // the file to which the exporter writes
	atRest   []time.Duration
	longest  []time.Duration // of each reload
	lists    int             // LIST requests of the reloads
	restart  time.Duration   // from the start of a process until it delivered what had changed meanwhile
}

// measure makes changes one after the other, at rest and through each reload.
func (m *measurement) measure(ctx context.Context, reloads int, start func() (*pipeline.Exporter, error)) error {
	stream, err := os.Open(m.changes)
	if err != nil {
		return err
	}
	defer stream.Close()
	if _, err := stream.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	p := &prober{cluster: m.cluster, stream: stream}
	for range resting {
		took, err := p.change(ctx)
		if err != nil {
			return err
		}
		m.atRest = append(m.atRest, took)
	}
	for n := range reloads {
		longest, err := m.reload(ctx, p, n)
		if err != nil {
			return fmt.Errorf("reload %d: %w", n, err)
		}
		m.longest = append(m.longest, longest)
		// The counters begin at 0 with each reload.
		lists, err := m.sum(ctx, "kubecdc_resource_list_requests_total")
		if err != nil {
			return err
		}
		m.lists += lists
	}
	return m.measureRestart(ctx, p, start)
}

// reload edits the configuration and makes changes until it is active. It returns the longest that one of them waited.
func (m *measurement) reload(ctx context.Context, p *prober, n int) (longest time.Duration, err error) {
	text, err := os.ReadFile(m.exporter.Config)
	if err != nil {
		return 0, err
	}
	from, to := "drop: [status]", "drop: [status, spec.dropped]"
	if n%2 == 1 {
		from, to = to, from
	}
	text = bytes.Replace(text, []byte(from), []byte(to), 1)
	if err := os.WriteFile(m.exporter.Config, text, 0o600); err != nil {
		return 0, err
	}
	sum := sha256.Sum256(text)
	active := fmt.Sprintf("kubecdc_config_info{hash=%q} 1\n", hex.EncodeToString(sum[:])[:12])
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		took, err := p.change(ctx)
		if err != nil {
			return 0, err
		}
		longest = max(longest, took)
		metrics, err := m.metrics(ctx)
		if err != nil {
			return 0, err
		}
		if strings.Contains(metrics, active) && !strings.Contains(metrics, `code="ConfigPending"`) && strings.Contains(metrics, "\nkubecdc_ready 1\n") {
			return longest, nil
		}
	}
}

// measureRestart ends the exporter, makes a change, and starts it again.
func (m *measurement) measureRestart(ctx context.Context, p *prober, start func() (*pipeline.Exporter, error)) error {
	if err := m.exporter.Stop(); err != nil {
		return err
	}
	if err := p.write(ctx); err != nil {
		return err
	}
	began := time.Now()
	delivered := make(chan error, 1)
	go func() {
		err := p.await(ctx)
		m.restart = time.Since(began)
		delivered <- err
	}()
	exporter, err := start()
	if err != nil {
		return err
	}
	m.exporter = exporter
	return <-delivered
}

func (m *measurement) metrics(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.exporter.Address+"/metrics", nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// sum adds up the series of a metric.
func (m *measurement) sum(ctx context.Context, metric string) (total int, err error) {
	metrics, err := m.metrics(ctx)
	if err != nil {
		return 0, err
	}
	for _, found := range regexp.MustCompile(`(?m)^`+metric+`\{.*\} (\d+)$`).FindAllStringSubmatch(metrics, -1) {
		n, err := strconv.Atoi(found[1])
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// prober changes one object and waits for the change in the stream.
type prober struct {
	cluster *cluster
	stream  *os.File
	changes int
	last    []byte // what was read and is no whole line yet
}

// change makes one change, returns how long it took from the API server's answer into the stream, and waits a moment.
func (p *prober) change(ctx context.Context) (time.Duration, error) {
	if err := p.write(ctx); err != nil {
		return 0, err
	}
	written := time.Now()
	if err := p.await(ctx); err != nil {
		return 0, err
	}
	took := time.Since(written)
	select {
	case <-time.After(every):
	case <-ctx.Done():
	}
	return took, ctx.Err()
}

// write makes one change.
func (p *prober) write(ctx context.Context) error {
	p.changes++
	patch := fmt.Sprintf(`{"spec":{"change":"number-%d-"}}`, p.changes)
	_, err := p.cluster.objects(0).Patch(ctx, probe, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// await waits until the last change is in the stream.
func (p *prober) await(ctx context.Context) error {
	if err := pipeline.Until(ctx, look, func() (bool, error) {
		more, err := io.ReadAll(p.stream)
		p.last = append(p.last, more...)
		end := bytes.LastIndexByte(p.last, '\n') + 1
		found := bytes.Contains(p.last[:end], fmt.Appendf(nil, "number-%d-", p.changes))
		p.last = p.last[end:]
		return found, err
	}); err != nil {
		return fmt.Errorf("change %d: %w", p.changes, err)
	}
	return nil
}
