package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// startWithin bounds the start of all servers. The first build of the API server is not in it, see "parts build all".
const startWithin = 10 * time.Minute

// reader is a user with only the rights that a test grants.
const reader = "reader"

// stranger is a user without rights. No test may grant it any.
const stranger = "stranger"

// environment is a set of servers. A test that asks for one has it to itself, since tests kill servers and compact etcd.
type environment struct {
	dir          string
	program      string // the exporter
	controlPlane *controlplane.ControlPlane
	kafka        *kafka.Broker
	nats         *natsserver.Server
	cluster      *workload.Cluster
	etcd         *oracle.Etcd
	startError   error
}

const (
	// environments is how many sets of servers there are at most. They start with the first tests that need them.
	environments = 3
	// atOnceAtMost is how many tests run at a time, those included that have servers of their own. They mostly wait.
	atOnceAtMost = "4"
)

var (
	idle       = make(chan *environment, environments) // those that no test has; the dir of a new one is empty
	inUse      sync.Map                                // environments by the name of the test that has one
	alongside  sync.Map                                // names of the tests that run beside others
	programDir string
	buildOnce  sync.Once
	builtFile  string
	buildError error
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnceAtMost); err != nil {
		panic(err)
	}
	for range environments {
		idle <- &environment{}
	}
	code := m.Run()
	var errs []error
	for range environments {
		errs = append(errs, (<-idle).stop())
	}
	if err := errors.Join(append(errs, os.RemoveAll(programDir))...); err != nil {
		fmt.Fprintln(os.Stderr, "stop the servers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// runAlongside lets a test run beside others. A subtest belongs to its test, which has to have called this before.
func runAlongside(t *testing.T) {
	t.Helper()
	if test, _, isSubtest := strings.Cut(t.Name(), "/"); isSubtest {
		if _, called := alongside.Load(test); !called {
			t.Fatal("call servers before the subtests, or no other test runs beside them")
		}
		return
	}
	if _, called := alongside.LoadOrStore(t.Name(), true); called {
		return
	}
	t.Cleanup(func() { alongside.Delete(t.Name()) })
	t.Parallel()
}

// servers returns an environment with all servers running, which the test has to itself until its end. The subtests of a
// test that has one get the same.
func servers(t *testing.T) *environment {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	require.Program(t, "mvn", "install Maven 3.8 or later")
	runAlongside(t)
	test, _, _ := strings.Cut(t.Name(), "/")
	if e, has := inUse.Load(test); has {
		return e.(*environment)
	}
	e := <-idle
	inUse.Store(test, e)
	t.Cleanup(func() {
		inUse.Delete(test)
		idle <- e
	})
	e.program = program(t)
	if err := e.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.undoAtEnd(t)
	return e
}

// undoWithin bounds what tidying up after a test takes.
const undoWithin = time.Minute

// undoAtEnd deletes at the end of the test everything in the cluster that was created since now, whatever it is: others
// would see it. It needs no API server, and for API servers it is a deletion as any.
func (e *environment) undoAtEnd(t *testing.T) {
	t.Helper()
	beginning, err := e.etcd.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), undoWithin)
		defer cancel()
		if err := e.etcd.Undo(ctx, beginning); err != nil {
			t.Errorf("objects are left: %v", err)
		}
	})
}

// prepare starts what does not run: all of it at first, later what a failed test has left stopped, so that it fails alone.
func (e *environment) prepare(ctx context.Context) (err error) {
	if e.dir == "" {
		if e.dir, err = os.MkdirTemp("", "kubecdc-e2e-"); err != nil {
			return err
		}
		e.startError = e.start()
	}
	if e.startError != nil {
		return e.startError
	}
	var errs []error
	if e.controlPlane.APIServerProcess() == nil {
		errs = append(errs, e.controlPlane.StartAPIServer(ctx))
	}
	if e.kafka.Process() == nil {
		errs = append(errs, e.kafka.Restart(ctx))
	}
	if e.nats.Process() == nil {
		errs = append(errs, e.nats.Restart(ctx))
	}
	return errors.Join(errs...)
}

// program returns the path of the exporter, built from the working tree.
func program(t *testing.T) string {
	t.Helper()
	require.Integration(t)
	buildOnce.Do(func() { builtFile, buildError = buildProgram() })
	if buildError != nil {
		t.Fatal(buildError)
	}
	return builtFile
}

func buildProgram() (file string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	if programDir, err = os.MkdirTemp("", "kubecdc-e2e-program-"); err != nil {
		return "", err
	}
	return exporter.Build(ctx, programDir)
}

// start starts all servers at once.
func (e *environment) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	starts := []func(context.Context) error{e.startControlPlane, e.startKafka, e.startNATS}
	errs := make([]error, len(starts))
	var all sync.WaitGroup
	for i, start := range starts {
		all.Go(func() { errs[i] = start(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (e *environment) startControlPlane(ctx context.Context) error {
	if err := e.startOwnControlPlane(ctx, controlplane.Options{
		Dir:   filepath.Join(e.dir, "controlplane"),
		Users: []controlplane.User{{Name: reader, Token: "reader-token"}, {Name: stranger, Token: "stranger-token"}},
	}); err != nil {
		return err
	}
	return e.cluster.Define(ctx, workload.WidgetGroup, "widgets", "Widget")
}

func (e *environment) startOwnControlPlane(ctx context.Context, options controlplane.Options) (err error) {
	options.Users = append(options.Users, controlplane.User{Name: account, Token: "least-token"})
	// A stop waits this long for open watches, which do not end by themselves.
	options.APIServerArgs = append(options.APIServerArgs, "--request-timeout=5s")
	if err := os.Mkdir(options.Dir, 0o755); err != nil {
		return err
	}
	if e.controlPlane, err = controlplane.Start(ctx, options); err != nil {
		return err
	}
	if e.etcd, err = oracle.Open(e.controlPlane.EtcdEndpoint()); err != nil {
		return err
	}
	e.cluster, err = workload.Connect(e.controlPlane.Kubeconfig())
	return err
}

// withControlPlane is the environment with another control plane, which ends with the test.
func (e *environment) withControlPlane(t *testing.T, options controlplane.Options) *environment {
	t.Helper()
	own := &environment{dir: e.dir, program: e.program, kafka: e.kafka, nats: e.nats}
	options.Dir = filepath.Join(t.TempDir(), "controlplane")
	if err := own.startOwnControlPlane(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(own.etcd.Close(), own.controlPlane.Stop()); err != nil {
			t.Error(err)
		}
	})
	return own
}

func (e *environment) startKafka(ctx context.Context) (err error) {
	e.kafka, err = kafka.Start(ctx, kafka.Options{
		Dir: filepath.Join(e.dir, "kafka"), Properties: map[string]string{"log.cleaner.backoff.ms": "200"}, // else 15 s
	})
	return err
}

func (e *environment) startNATS(ctx context.Context) (err error) {
	e.nats, err = natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(e.dir, "nats")})
	return err
}

// stop stops what runs and takes away what it left, but not after an error, so that logs can be read.
func (e *environment) stop() error {
	var errs []error
	if e.etcd != nil {
		errs = append(errs, e.etcd.Close())
	}
	if e.controlPlane != nil {
		errs = append(errs, e.controlPlane.Stop())
	}
	if e.kafka != nil {
		errs = append(errs, e.kafka.Stop())
	}
	if e.nats != nil {
		errs = append(errs, e.nats.Stop())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(e.dir)
}
