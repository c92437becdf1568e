package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
	"github.com/kubecdc/kubecdc/test/bench/verify"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// Bars of a start.
const (
	startRSSBar     = int64(160_000_000) // at any moment, with everything delivered
	restartBar      = time.Second        // to the first new change, with few partitions
	manyPartitions  = 100
	restartManyBar  = 1500 * time.Millisecond // with more than those
	startsMeasured  = "pods"
	percentMeasured = 60  // of a corpus's objects are Pods, which weigh 8 KB on average
	changesMeasured = 100 // of Pods and Events, which wait for the second start
)

// startup is what it takes to begin with many objects, and to begin again.
type startup struct {
	Objects    int           `json:"objects"`
	Partitions int           `json:"partitions"`     // of the topic
	Bytes      int64         `json:"bytes"`          // of the answer that holds them
	Server     float64       `json:"serverSeconds"`  // until a client that drops what it reads has read it
	Live       float64       `json:"liveSeconds"`    // from the start until the resource is live and its position stored
	Delivered  float64       `json:"deliverSeconds"` // until the last object is at the broker
	PeakRSS    int64         `json:"peakRSSBytes"`
	Restart    float64       `json:"restartSeconds"` // from the second start until a change that waited is delivered
	RestartRSS int64         `json:"restartPeakRSSBytes"`
	Read       [2]int64      `json:"read"` // lists and streaming lists that the second start made
	Delivery   verify.Result `json:"delivered"`
}

// measureStart starts the exporter on many objects, waits until all are delivered, and starts it again when some have
// changed.
func measureStart(ctx context.Context, o options, objects int) (m startup, err error) {
	o.corpus = corpus.Options{Objects: objects * 100 / percentMeasured, Changes: changesMeasured, Seed: o.corpus.Seed}
	c, err := corpus.New(o.corpus)
	if err != nil {
		return m, err
	}
	at := stage{dir: filepath.Join(o.dir, "start")}
	at.kubeconfig = filepath.Join(at.dir, "kubeconfig")
	if err := os.MkdirAll(at.dir, 0o755); err != nil {
		return m, err
	}
	t := &trial{corpus: c}
	surroundings, err := t.surround(ctx, o, &at)
	defer func() { err = errors.Join(err, surroundings()) }()
	if err != nil {
		return m, err
	}
	m.Objects, m.Partitions = countMeasured(c.Initial()), o.partitions
	if m.Server, m.Bytes, err = readAll(ctx, o.self, at); err != nil {
		return m, err
	}
	free, err := ports.Free(1)
	if err != nil {
		return m, err
	}
	s := startSystem(o.exporter, ports.Address(free[0]))
	began := time.Now()
	t.count = t.reader.Count
	isLive := func(ctx context.Context) (bool, error) { return isLive(ctx, ports.Address(free[0])), nil }
	if m.Live, err = t.startUntil(ctx, s, at, isLive); err != nil {
		return m, err
	}
	last, err := t.await(ctx, int64(m.Objects))
	m.Delivered = last.Sub(began).Seconds()
	if err = errors.Join(err, t.process.Stop()); err != nil {
		return m, err
	}
	m.PeakRSS = t.process.Usage().PeakRSS
	before, err := t.control.Requests(ctx)
	if err != nil {
		return m, err
	}
	if _, err = t.control.Start(ctx, 0); err != nil {
		return m, err
	}
	told, err := t.count(ctx)
	if err != nil {
		return m, err
	}
	if m.Restart, err = t.startUntil(ctx, s, at, func(ctx context.Context) (bool, error) {
		n, err := t.count(ctx)
		return n > told, err
	}); err != nil {
		return m, err
	}
	_, err = t.await(ctx, int64(countMeasured(c.Entries()))) // what comes twice comes at once
	if err = errors.Join(err, t.process.Stop()); err != nil {
		return m, err
	}
	m.RestartRSS = t.process.Usage().PeakRSS
	after, err := t.control.Requests(ctx)
	if err != nil {
		return m, err
	}
	m.Read = [2]int64{
		after[startsMeasured].Lists - before[startsMeasured].Lists, after[startsMeasured].WatchLists - before[startsMeasured].WatchLists,
	}
	m.Delivery, err = t.compare(ctx, s)
	m.Delivery.Lost -= len(c.Entries()) - countMeasured(c.Entries()) // Events are not selected
	return m, err
}

// countMeasured returns how many entries are of the selected resource.
func countMeasured(entries []corpus.Entry) (n int) {
	for _, e := range entries {
		if e.Resource == corpus.Pods {
			n++
		}
	}
	return n
}

// startSystem is the exporter with its default settings and one resource.
func startSystem(binary, admin string) system {
	return system{
		name: "exporter", decode: verify.Native,
		command: func(s stage) (string, []string, error) {
			path := filepath.Join(s.dir, "exporter.yaml")
			text := fmt.Sprintf(`cluster: {kubeconfig: %q}
resources:
  - select: [%s]
sinks:
  - name: kafka
    kafka: {brokers: [%q], topic: "k8s.{group}.{resource}"}
journal: {dir: %q}
admin: {listen: %q}
`, s.kubeconfig, startsMeasured, s.broker, filepath.Join(s.dir, "journal"), admin)
			return binary, []string{"run", "--config", path}, os.WriteFile(path, []byte(text), 0o644)
		},
	}
}

// startUntil starts the system and returns how many seconds it took until the condition held.
func (t *trial) startUntil(
	ctx context.Context, s system, at stage, holds func(context.Context) (bool, error),
) (float64, error) {
	began := time.Now()
	var err error
	if t.process, err = s.start(ctx, at); err != nil {
		return 0, err
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for time.Since(began) < 10*patience {
		switch held, err := holds(ctx); {
		case err != nil:
			return 0, errors.Join(err, t.process.Kill())
		case held:
			return time.Since(began).Seconds(), nil
		}
		select {
		case <-tick.C:
		case <-t.process.Done():
			return 0, fmt.Errorf("the exporter has ended: %w", t.process.Result())
		case <-ctx.Done():
			return 0, errors.Join(ctx.Err(), t.process.Kill())
		}
	}
	return 0, errors.Join(errors.New("the exporter does not become live, or delivers nothing"), t.process.Kill())
}

// stored is on the page of a resource with a stored position: its objects need not be read again.
var stored = regexp.MustCompile(`<dt>Position</dt><dd>[0-9]+</dd>`)

// isLive reads the resource's page.
func isLive(ctx context.Context, admin string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/resource?name="+startsMeasured, nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false // not yet
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return err == nil && stored.Match(text)
}

// readAll lets another process read everything, as the exporter is one, and returns how long that took and how much it was.
func readAll(ctx context.Context, self string, at stage) (seconds float64, bytes int64, err error) {
	log := filepath.Join(at.dir, "read.log")
	p, err := process.Start(ctx, process.Options{Name: "reader", Path: self, Args: []string{"read", "-kubeconfig", at.kubeconfig}, Log: log})
	if err != nil {
		return 0, 0, err
	}
	if err := p.Result(); err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(string(text), &seconds, &bytes)
	return seconds, bytes, err
}

// runRead reads a streaming list up to the bookmark that ends it, drops it, and prints the seconds and bytes it took.
func runRead(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("bench read", flag.ContinueOnError)
	kubeconfig := f.String("kubeconfig", "", "of the API server")
	if err := f.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/api/v1/"+startsMeasured+
		"?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", nil)
	if err != nil {
		return err
	}
	began := time.Now()
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	n, err := drop(answer.Body)
	if err != nil {
		return err
	}
	_, err = fmt.Println(strconv.FormatFloat(time.Since(began).Seconds(), 'f', 3, 64), n)
	return err
}

// drop reads up to the mark of the end.
func drop(r io.Reader) (n int64, err error) {
	const mark = `"k8s.io/initial-events-end":"true"`
	buffer, kept := make([]byte, 1<<20), 0
	for {
		read, err := r.Read(buffer[kept:])
		n += int64(read)
		text := buffer[:kept+read]
		// The mark is in the last frame, and nothing follows it.
		if tail := text[max(0, len(text)-1024):]; strings.Contains(string(tail), mark) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("before the end of the initial events: %w", err)
		}
		kept = copy(buffer, text[max(0, len(text)-len(mark)):])
	}
}

// restartBar is for how long a change that waited may take from the second start.
func (m startup) restartBar() time.Duration {
	if m.Partitions > manyPartitions {
		return restartManyBar
	}
	return restartBar
}

// missed returns the bars that were not met.
func (m startup) missed() []string {
	var all []string
	if m.PeakRSS > startRSSBar {
		all = append(all, fmt.Sprintf("peak RSS of a start: %s MiB, at most %s", mebibytes(m.PeakRSS), mebibytes(startRSSBar)))
	}
	if bar := m.restartBar(); m.Restart > bar.Seconds() {
		all = append(all, fmt.Sprintf("restart to the first new change: %.2f s, at most %s", m.Restart, bar))
	}
	if m.Read != [2]int64{} {
		all = append(all, fmt.Sprintf("the restart made %d lists and %d streaming lists, none expected", m.Read[0], m.Read[1]))
	}
	if d := m.Delivery; d.Lost != 0 || d.Duplicates != 0 || d.Wrong != 0 || d.OutOfOrder != 0 {
		all = append(all, fmt.Sprintf("objects of the start: %d lost, %d twice, %d wrong, %d out of order", d.Lost, d.Duplicates, d.Wrong, d.OutOfOrder))
	}
	return all
}

// print has no bar for the time to live: the replay server sends what was rendered before, which no API server can.
func (m startup) print(w io.Writer) {
	fmt.Fprintf(w, "\nstart on %d objects, %.0f MB: live after %.2f s; delivered after %.2f s; peak RSS %s MiB (bar %s)\n",
		m.Objects, float64(m.Bytes)/1e6, m.Live, m.Delivered, mebibytes(m.PeakRSS), mebibytes(startRSSBar))
	fmt.Fprintf(w, "a client that drops what it reads from this server, which has rendered it before, needs %.2f s; make fullsize has the ratio on a real API server\n", m.Server)
	fmt.Fprintf(w, "restart with %d partitions: first new change after %.2f s (bar %s), peak RSS %s MiB, %d lists, %d streaming lists; ",
		m.Partitions, m.Restart, m.restartBar(), mebibytes(m.RestartRSS), m.Read[0], m.Read[1])
	fmt.Fprintf(w, "%d records, %d lost, %d duplicates\n", m.Delivery.Records, m.Delivery.Lost, m.Delivery.Duplicates)
}
