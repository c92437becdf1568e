package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// startTimeout bounds the start of a control plane. It does not include the first build of the API server, see "parts build
// all".
const startTimeout = 10 * time.Minute

// environment is a control plane and the exporter's program.
type environment struct {
	dir          string
	program      string
	controlPlane *controlplane.ControlPlane
	cluster      *workload.Cluster
	etcd         *oracle.Etcd
}

// shared is the control plane of all tests.
var (
	shared      environment
	startShared sync.Once
	sharedError error
	build       sync.Once
	buildError  error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := errors.Join(shared.stopServers(), os.RemoveAll(programDir)); err != nil {
		fmt.Fprintln(os.Stderr, "stop the servers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// sharedControlPlane returns the shared control plane.
func sharedControlPlane(t *testing.T) *environment {
	t.Helper()
	startShared.Do(func() { sharedError = shared.startServers(t) })
	if sharedError != nil {
		t.Fatal(sharedError)
	}
	return &shared
}

func (e *environment) startServers(t *testing.T) (err error) {
	t.Helper()
	require.Integration(t)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if e.program, err = buildProgram(ctx); err != nil {
		return err
	}
	if e.dir, err = os.MkdirTemp("", "kubecdc-e2e-source-"); err != nil {
		return err
	}
	// A stop waits this long for open watches, which have a longer timeout.
	e.controlPlane, err = controlplane.Start(ctx, controlplane.Options{
		Dir: e.dir, NoAudit: true, APIServerArgs: []string{"--request-timeout=5s"},
	})
	if err != nil {
		return err
	}
	if e.etcd, err = oracle.Open(e.controlPlane.EtcdEndpoint()); err != nil {
		return err
	}
	e.cluster, err = workload.Connect(e.controlPlane.Kubeconfig())
	return err
}

// programPath is the exporter, built once into programDir.
var programDir, programPath string

func buildProgram(ctx context.Context) (string, error) {
	build.Do(func() {
		if programDir, buildError = os.MkdirTemp("", "kubecdc-e2e-program-"); buildError == nil {
			programPath, buildError = exporter.Build(ctx, programDir)
		}
	})
	return programPath, buildError
}

// stopServers stops the servers and removes their files, except after an error, so that logs can be read.
func (e *environment) stopServers() error {
	if e.controlPlane == nil {
		return nil
	}
	var errs []error
	if e.etcd != nil {
		errs = append(errs, e.etcd.Close())
	}
	if err := errors.Join(append(errs, e.controlPlane.Stop())...); err != nil {
		return err
	}
	return os.RemoveAll(e.dir)
}

// newGateway starts a gateway in front of the API server, and returns it with a kubeconfig for it.
func (e *environment) newGateway(t *testing.T) (*proxy.Gateway, string) {
	t.Helper()
	g, err := proxy.StartGateway(e.controlPlane.APIServers()[0].Address(), e.controlPlane.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := g.Kubeconfig(e.controlPlane.Kubeconfig(), path); err != nil {
		t.Fatal(err)
	}
	return g, path
}
