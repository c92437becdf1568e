package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

const (
	// existing is how many objects there are at the start; KUBECDC_E2E_START_OBJECTS sets another number.
	existing = 10_000
	// mostMemory is the peak RSS that 100,000 objects of 8 KB may take, without a limit.
	mostMemory = int64(160_000_000)
	// perWrite is how many objects are put into etcd at once, which takes 128 of them, and 1.5 MiB.
	perWrite = 100
)

// TestStartOnManyObjectsReadsThemOnce starts the exporter on many ConfigMaps of 8 KB, and starts it again. Times are
// printed and not judged: run it alone with KUBECDC_E2E_START_OBJECTS=100000 to measure.
func TestStartOnManyObjectsReadsThemOnce(t *testing.T) {
	objects := sizeFrom(t, "KUBECDC_E2E_START_OBJECTS", existing)
	l := newRestricted(t, "resources: [{select: [configmaps], namespaces: {include: [web]}}]\n")
	l.apply(l.command("rbac", "--config", l.config))
	l.fill(objects)
	config := l.configure("many.yaml")

	if objects != existing {
		l.apart()
	}
	server, size := l.readAll()
	first := l.until(config, func() bool { return l.positioned() })
	l.await(config+".log", func() string {
		if told := count(t, config+".changes", `"type":"snapshot",`); told != objects {
			return fmt.Sprintf("%d objects, %d are told", objects, told)
		}
		return ""
	})
	l.must(first.process.Stop())
	peak := first.process.Usage().PeakRSS
	t.Logf("%d objects, %d MB: a client that drops them needs %.2f s; live after %.2f s, ratio %.2f; peak RSS %d MB, CPU %.2f s",
		objects, size/1e6, server.Seconds(), first.took.Seconds(), first.took.Seconds()/server.Seconds(), peak/1e6, first.process.Usage().CPU.Seconds())
	if peak > mostMemory && os.Getenv("KUBECDC_E2E_RACE") != "1" {
		t.Errorf("peak RSS %d MB, at most %d", peak/1e6, mostMemory/1e6)
	}

	told := count(t, config+".changes", "\n")
	began := time.Now()
	again := l.until(config, func() bool { return l.positioned() })
	l.must(l.cluster.Create(t.Context(), written["configmaps;ns=web"], "web", "last"))
	l.await(config+".log", func() string {
		if count(t, config+".changes", `"name":"last",`) == 0 {
			return "what was written after the restart"
		}
		return ""
	})
	l.must(again.process.Stop())
	t.Logf("restart: live after %.2f s, peak RSS %d MB", again.took.Seconds(), again.process.Usage().PeakRSS/1e6)
	if more := count(t, config+".changes", "\n") - told; more != 1 {
		t.Errorf("%d changes were told after the restart, one was made", more)
	}
	l.listedNothing(began)
}

// fill puts ConfigMaps of 8 KB into etcd while no API server runs, which is much faster than to create them.
func (l *restricted) fill(objects int) {
	l.t.Helper()
	l.must(l.controlPlane.StopAPIServer())
	type put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type operation struct {
		Put put `json:"requestPut"`
	}
	// Text that is no repetition of itself, but for its alphabet.
	var ballast strings.Builder
	for i := 0; ballast.Len() < 7_700; i++ {
		fmt.Fprintf(&ballast, "%x=%d;", i*2654435761, i)
	}
	for first := 0; first < objects; first += perWrite {
		var write struct {
			Success []operation `json:"success"`
		}
		for i := first; i < min(first+perWrite, objects); i++ {
			name := fmt.Sprintf("config-%06d", i)
			value := fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"web","uid":"00000000-0000-4000-8000-%012d",`+
				`"creationTimestamp":"2025-01-01T00:00:00Z"},"data":{"text":%q}}`, name, i, ballast.String())
			write.Success = append(write.Success, operation{put{[]byte("/registry/configmaps/web/" + name), []byte(value)}})
		}
		body, err := json.Marshal(write)
		l.must(err)
		answer, err := http.Post(l.controlPlane.EtcdEndpoint()+"/v3/kv/txn", "application/json", bytes.NewReader(body))
		l.must(err)
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if l.must(err); answer.StatusCode != http.StatusOK {
			l.t.Fatalf("etcd: %s: %s", answer.Status, text)
		}
	}
	l.must(l.controlPlane.StartAPIServer(l.t.Context()))
	l.awaitAccess("")
}

// apart gives the API server a core and what reads from it the others, as if on machines of their own: else each takes
// from the other what is to be measured.
func (l *restricted) apart() {
	l.t.Helper()
	last := runtime.NumCPU() - 1
	if last == 0 {
		l.t.Log("one core for all: what the API server needs and what the exporter takes are not told apart")
		return
	}
	pin := func(cores string, pid int) {
		if out, err := exec.Command("taskset", "-apc", cores, strconv.Itoa(pid)).CombinedOutput(); err != nil {
			l.t.Fatalf("taskset, to give the API server a core of its own: %v: %s", err, out)
		}
	}
	pin("0", l.controlPlane.APIServerProcess().Pid())
	pin(fmt.Sprintf("1-%d", last), os.Getpid())
	l.t.Cleanup(func() { pin(fmt.Sprintf("0-%d", last), os.Getpid()) })
}

// readAll reads what the exporter reads, drops it, and returns how long that took and how much it was.
func (l *restricted) readAll() (took time.Duration, size int64) {
	l.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig)
	l.must(err)
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	l.must(err)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+
		"/api/v1/namespaces/web/configmaps?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", nil)
	l.must(err)
	began := time.Now()
	answer, err := client.Do(request)
	l.must(err)
	defer answer.Body.Close()
	lines := bufio.NewReaderSize(answer.Body, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		l.must(err)
		size += int64(len(line))
		if bytes.HasPrefix(line, []byte(`{"type":"BOOKMARK"`)) {
			return time.Since(began), size
		}
	}
}

// started is an exporter that runs, and what it took to.
type started struct {
	process *process.Process
	took    time.Duration
}

// until starts the exporter and waits for a condition.
func (l *restricted) until(config string, reached func() bool) started {
	l.t.Helper()
	began := time.Now()
	p, err := process.Start(l.t.Context(), process.Options{
		Name: "exporter", Path: l.program, Args: []string{"run", "--config", config}, Dir: l.dir, Log: config + ".log", Env: l.env,
	})
	l.must(err)
	l.await(config+".log", func() string {
		if !reached() {
			return "the exporter to be live"
		}
		return ""
	})
	return started{p, time.Since(began)}
}

// live is on the page of a resource with a stored position: its objects need not be read again.
var live = regexp.MustCompile(`<dt>Position</dt><dd>[0-9]+</dd>`)

func (l *restricted) positioned() bool {
	l.t.Helper()
	return live.MatchString(l.get("/resource?name=configmaps%3Bns%3Dweb"))
}

// count returns how often a text occurs in a file. A record that is still being written does not end yet.
func count(t *testing.T, path, text string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(line, []byte(text)) {
			n++
		}
	}
}

// asked is what the exporter has asked about ConfigMaps since then, as the audit log has it.
func (l *restricted) asked(since time.Time) []controlplane.AuditEntry {
	l.t.Helper()
	entries, err := l.controlPlane.AuditEntries()
	l.must(err)
	return slices.DeleteFunc(entries, func(e controlplane.AuditEntry) bool {
		return e.User != account || !strings.HasPrefix(e.UserAgent, "kubecdc/") || e.Resource != "configmaps" || e.Time.Before(since)
	})
}

// listedNothing asks the audit log whether the exporter has read all ConfigMaps since then.
func (l *restricted) listedNothing(since time.Time) {
	l.t.Helper()
	watches := 0
	for _, e := range l.asked(since) {
		if e.Verb == "list" {
			l.t.Errorf("read again: %s %s", e.Verb, e.RequestURI)
		}
		watches++
	}
	if watches == 0 {
		l.t.Error("the audit log shows no watch after the restart, so it shows nothing at all")
	}
}
