package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// atOnce is how many faults are staged at a time. They mostly wait.
const atOnce = "12"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the servers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// The exporter's user and password in Kafka, and a wrong one.
const user, password, wrongPassword = "exporter", "open-sesame", "hunter2"

// shared are the surroundings of all tests.
var (
	shared      surroundings
	startShared sync.Once
	sharedError error
)

// startWithin bounds the start of all servers, without their first build.
const startWithin = 10 * time.Minute

// surroundings are what all faults share.
type surroundings struct {
	program      string // the exporter
	dir          string // with ca.pem, and the password of Kafka
	authority    *certificates.Authority
	controlPlane *controlplane.ControlPlane
	cluster      *workload.Cluster
	kafka        *kafka.Broker // which lets everybody in at its plain listener, and asks for the password at the other one
	nats         *natsserver.Server
	prometheus   *prometheus
}

// surround starts everything at once, with the first test. It ends with the last one.
func surround(t *testing.T) *surroundings {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	require.Program(t, "mvn", "install Maven 3.8 or later")
	startShared.Do(func() {
		sharedError = errors.New("the servers were not started")
		sharedError = shared.start(t)
	})
	must(t, sharedError)
	return &shared
}

func (s *surroundings) start(t *testing.T) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	if s.dir, err = os.MkdirTemp("", "kubecdc-e2e-faults-"); err != nil {
		return err
	}
	s.authority = certificates.New(t)
	must(t, os.WriteFile(filepath.Join(s.dir, "ca.pem"), s.authority.PEM, 0o600))
	must(t, os.WriteFile(filepath.Join(s.dir, "password"), []byte(password), 0o600))
	s.prometheus = startPrometheus(ctx, t, filepath.Join(s.dir, "prometheus"))
	guarded := s.guarded(t)
	var errs [4]error
	var all sync.WaitGroup
	all.Go(func() { s.program, errs[0] = exporter.Build(ctx, s.dir) })
	all.Go(func() { errs[1] = s.startControlPlane(ctx) })
	all.Go(func() { s.kafka, errs[2] = kafka.Start(ctx, guarded) })
	all.Go(func() { s.nats, errs[3] = natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(s.dir, "nats")}) })
	all.Wait()
	return errors.Join(errs[:]...)
}

func (s *surroundings) startControlPlane(ctx context.Context) (err error) {
	dir := filepath.Join(s.dir, "controlplane")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	s.controlPlane, err = controlplane.Start(ctx, controlplane.Options{
		Dir: dir, Users: []controlplane.User{{Name: "reader", Token: "reader-token"}}, NoAudit: true,
		APIServerArgs: []string{"--request-timeout=5s"}, // a stop waits this long for open watches, which do not end by themselves
	})
	if err != nil {
		return err
	}
	s.cluster, err = workload.Connect(s.controlPlane.Kubeconfig())
	return err
}

// guarded are the options of a broker with a listener that asks for a password, and with rights that may be taken.
func (s *surroundings) guarded(t *testing.T) kafka.Options {
	t.Helper()
	cert, key := s.authority.Issue(t)
	return kafka.Options{
		Dir: filepath.Join(s.dir, "kafka"),
		Secure: &kafka.Secure{Certificate: string(cert), Key: string(key), Mechanisms: map[string]string{
			"PLAIN": `org.apache.kafka.common.security.plain.PlainLoginModule required user_` + user + `="` + password + `";`,
		}},
		Properties: map[string]string{
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
			"super.users":           "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true",
		},
	}
}

// stop stops what runs and takes away what it left, but not after an error, so that logs can be read.
func (s *surroundings) stop() error {
	var errs []error
	if s.prometheus != nil {
		errs = append(errs, s.prometheus.running.Stop())
	}
	if s.controlPlane != nil {
		errs = append(errs, s.controlPlane.Stop())
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Stop())
	}
	if s.nats != nil {
		errs = append(errs, s.nats.Stop())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(s.dir)
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check notes an error.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// get asks an HTTP server.
func get(ctx context.Context, address, path string) (code int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", fmt.Errorf("%s: %w", path, err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), err
}
