package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/process"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// tapped is what a test taps: one of the shared clusters, with a namespace of the test's own.
type tapped struct {
	*environment
	t         *testing.T
	namespace string
}

func newTapped(t *testing.T) *tapped {
	t.Helper()
	l := &tapped{environment: servers(t), t: t, namespace: fmt.Sprintf("tapped-%d", fixtures.Add(1))}
	l.must(l.cluster.CreateNamespace(t.Context(), l.namespace))
	return l
}

func (l *tapped) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// tap is a running "exporter tap" and what it has printed.
type tap struct {
	*process.Process
	t   *testing.T
	log string
}

// tap starts a tap that may write nowhere, and returns when it reports that it watches.
func (l *tapped) tap(args ...string) *tap {
	l.t.Helper()
	nowhere := filepath.Join(l.t.TempDir(), "nowhere")
	l.must(os.Mkdir(nowhere, 0o500))
	v := &tap{t: l.t, log: filepath.Join(l.t.TempDir(), "tap.log")}
	p, err := process.Start(l.t.Context(), process.Options{
		Name: "exporter tap", Path: l.program, Args: append([]string{"tap"}, args...), Dir: nowhere, Log: v.log,
		Env: []string{"KUBECONFIG=" + l.controlPlane.Kubeconfig(), "HOME=" + nowhere, "TMPDIR=" + nowhere},
	})
	l.must(err)
	v.Process = p
	l.t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			l.t.Error(err)
		}
	})
	v.await("^C ends")
	return v
}

// await waits until the tap has printed every text, in this order.
func (v *tap) await(texts ...string) string {
	v.t.Helper()
	deadline := time.Now().Add(arriveWithin)
	for {
		b, err := os.ReadFile(v.log)
		if err != nil {
			v.t.Fatal(err)
		}
		rest, missing := string(b), ""
		for _, text := range texts {
			_, after, found := strings.Cut(rest, text)
			if !found {
				missing = text
				break
			}
			rest = after
		}
		if missing == "" {
			return string(b)
		}
		if time.Now().After(deadline) {
			v.t.Fatalf("tap does not print %q; it printed\n%s", missing, b)
		}
		await.Pause(v.t, lookEvery)
	}
}

func TestTapShowsChangesFieldByField(t *testing.T) {
	l := newTapped(t)
	ctx := t.Context()
	l.must(l.cluster.Create(ctx, workload.ConfigMaps, l.namespace, "old"))
	v := l.tap("cm,Secret", "-n", l.namespace, "--color", "never")

	l.must(l.cluster.Patch(ctx, workload.ConfigMaps, l.namespace, "old", `{"data":{"replicas":"two"}}`))
	l.must(l.cluster.Patch(ctx, workload.ConfigMaps, l.namespace, "old", `{"data":{"replicas":"three"}}`))
	l.must(l.cluster.Create(ctx, workload.ConfigMaps, "default", l.namespace+"-elsewhere"))
	l.must(l.cluster.Create(ctx, workload.ConfigMaps, l.namespace, "new"))
	l.must(l.cluster.Delete(ctx, workload.ConfigMaps, l.namespace, "new"))
	text := v.await("~ configmaps "+l.namespace+"/old", "data.replicas", "+ two", "~ configmaps "+l.namespace+"/old", "data.replicas",
		"two → three", "+ configmaps "+l.namespace+"/new", "- configmaps "+l.namespace+"/new")
	if strings.Contains(text, "+ configmaps "+l.namespace+"/old") || strings.Contains(text, "elsewhere") {
		t.Errorf("it shows what existed before, or another namespace:\n%s", text)
	}
	l.must(syscall.Kill(v.Pid(), syscall.SIGINT))
	<-v.Done()
	var exit *exec.ExitError
	if err := v.Result(); errors.As(err, &exit) {
		t.Errorf("^C ends it with %v", err)
	}
}

func TestTapShowsOneChangeAndEnds(t *testing.T) {
	l := newTapped(t)
	ctx := t.Context()
	filter := `change.resource == "configmaps" && change.type == "updated" && has(oldObject.data) && oldObject.data.a == "1" && object.data.a == "2"`
	v := l.tap("--select", "*", "--filter", filter, "-o", "name", "--once")
	l.must(l.cluster.Create(ctx, workload.ConfigMaps, l.namespace, "one"))
	for _, patch := range []string{`{"data":{"a":"1"}}`, `{"data":{"a":"2"}}`, `{"data":{"a":"3"}}`} {
		l.must(l.cluster.Patch(ctx, workload.ConfigMaps, l.namespace, "one", patch))
	}
	<-v.Done()
	want := "updated configmaps " + l.namespace + "/one\n"
	if _, shown, _ := strings.Cut(v.await(want), "\n"); shown != want {
		t.Errorf("it shows %q", shown)
	}
}

// TestTapReportsForbiddenResources asks as a user without rights.
func TestTapReportsForbiddenResources(t *testing.T) {
	l := newTapped(t)
	kubeconfig, err := l.controlPlane.KubeconfigFor(stranger)
	l.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, l.program, "tap", "--select", "configmaps", "--kubeconfig", kubeconfig)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	stderr, err := cmd.StderrPipe()
	l.must(err)
	l.must(cmd.Start())
	said := ""
	for lines := bufio.NewScanner(stderr); !strings.Contains(said, "forbidden") && lines.Scan(); {
		said += lines.Text() + "\n"
	}
	if !strings.Contains(said, "forbidden") {
		t.Errorf("it says %q", said)
	}
	cancel()
	_ = cmd.Wait() // it was stopped
}

// tapSeconds is for how many seconds a busy cluster is shown; "make fullsize" sets ten minutes.
const tapSeconds = 8

// TestTapOfBusyClusterUsesLittleMemory shows a cluster in which 32 clients write as fast as they can. Changes shown before
// half of the time cost nothing more later, and it ends when stopped, however much is in flight.
func TestTapOfBusyClusterUsesLittleMemory(t *testing.T) {
	require.Long(t)
	l := newTapped(t)
	v := l.tap("--select", "*")
	load := l.cluster.Start(t.Context(), workload.Plan{
		Namespace: l.namespace, Prefix: "busy", Kinds: workload.AllKinds()[:4], Clients: clients, Objects: clients, Updates: math.MaxInt32,
	})
	t.Cleanup(load.Stop)
	seconds := sizeOf(t, "KUBECDC_E2E_TAP_SECONDS", tapSeconds)
	half := time.Duration(seconds) * time.Second / 2
	await.Pause(t, half)
	before := v.Usage().PeakRSS
	await.Pause(t, half)
	after := v.Usage()
	began := time.Now()
	l.must(syscall.Kill(v.Pid(), syscall.SIGINT))
	<-v.Done()
	t.Logf("%d writes a second; %d MiB after %v, %d MiB at the end; %.1f %% of a core; it ended after %v", load.Operations()/seconds,
		before>>20, half, after.PeakRSS>>20, 100*after.CPU.Seconds()/float64(seconds), time.Since(began).Round(time.Millisecond))
	var exit *exec.ExitError
	if err := v.Result(); errors.As(err, &exit) {
		t.Errorf("^C ends it with %v", err)
	}
	const settled = 2 * time.Minute // by then everything that is bounded has reached its bound
	if half >= settled && after.PeakRSS > before+before/10 {
		t.Errorf("memory grew from %d MiB to %d", before>>20, after.PeakRSS>>20)
	}
}
