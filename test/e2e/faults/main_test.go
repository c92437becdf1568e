package faults

import (
	"context"
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
	os.Exit(m.Run())
}

// The exporter's user and password in Kafka, and a wrong one.
const user, password, wrongPassword = "exporter", "open-sesame", "hunter2"

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

// surround starts everything at once. It ends with the test.
func surround(t *testing.T) *surroundings {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	require.Program(t, "mvn", "install Maven 3.8 or later")
	s := &surroundings{dir: t.TempDir(), authority: certificates.New(t)}
	must(t, os.WriteFile(filepath.Join(s.dir, "ca.pem"), s.authority.PEM, 0o600))
	must(t, os.WriteFile(filepath.Join(s.dir, "password"), []byte(password), 0o600))
	s.prometheus = startPrometheus(t)
	ctx := t.Context()
	var errs [4]error
	var all sync.WaitGroup
	all.Go(func() { s.program, errs[0] = exporter.Build(ctx, s.dir) })
	all.Go(func() { errs[1] = s.startControlPlane(ctx) })
	all.Go(func() { s.kafka, errs[2] = kafka.Start(ctx, s.guarded(t)) })
	all.Go(func() { s.nats, errs[3] = natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(s.dir, "nats")}) })
	all.Wait()
	t.Cleanup(func() { s.stop(t) })
	for _, err := range errs {
		must(t, err)
	}
	return s
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

func (s *surroundings) stop(t *testing.T) {
	if s.controlPlane != nil {
		check(t, s.controlPlane.Stop())
	}
	if s.kafka != nil {
		check(t, s.kafka.Stop())
	}
	if s.nats != nil {
		check(t, s.nats.Stop())
	}
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
