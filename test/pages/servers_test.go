package pages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/postgresql"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// startWithin bounds the start of the servers, and fetching what is not in the cache yet.
const startWithin = 30 * time.Minute

// servers are shared by all tests, with the tools that pages take for granted.
type servers struct {
	root  string
	dir   string
	plane *controlplane.ControlPlane
	kafka *kafka.Broker
	sql   *postgresql.Server
	env   []string
}

var (
	shared    servers
	startOnce sync.Once
	startErr  error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the servers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// running returns the servers, started.
func running(t *testing.T) *servers {
	t.Helper()
	require.Integration(t)
	for program, remedy := range map[string]string{
		"java": "install Java 17 or later", "mvn": "install Maven 3.8 or later", "make": "install make", "git": "install git",
		"curl": "install curl", "python3": "install Python 3.10 or later",
	} {
		require.Program(t, program, remedy)
	}
	startOnce.Do(func() { startErr = shared.start() })
	if startErr != nil {
		t.Fatal(startErr)
	}
	return &shared
}

func (s *servers) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	if s.root, err = build.Root(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "kubecdc-pages-"); err != nil {
		return err
	}
	if s.plane, err = controlplane.Start(ctx, controlplane.Options{Dir: filepath.Join(s.dir, "controlplane")}); err != nil {
		return err
	}
	if s.kafka, err = kafka.Start(ctx, kafka.Options{Dir: filepath.Join(s.dir, "kafka")}); err != nil {
		return err
	}
	if err := os.Chmod(s.dir, 0o755); err != nil { // PostgreSQL runs as another user
		return err
	}
	if s.sql, err = postgresql.Start(ctx, filepath.Join(s.dir, "postgresql")); err != nil {
		return err
	}
	tools, err := s.installTools(ctx)
	s.env = append(s.sql.Env(), "KUBECONFIG="+s.plane.Kubeconfig(), "PATH="+tools+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return err
}

// installTools writes commands of a directory, which goes before PATH.
func (s *servers) installTools(ctx context.Context) (string, error) {
	kubectl, err := build.Kubectl(ctx)
	if err != nil {
		return "", err
	}
	jars, err := build.KafkaTools(ctx)
	if err != nil {
		return "", err
	}
	python, err := build.Python(ctx)
	if err != nil {
		return "", err
	}
	java := "java -Xmx256m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp '" + jars + "/*' "
	dir := filepath.Join(s.dir, "tools")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for name, command := range map[string]string{
		"kubectl":                   "'" + kubectl + "'",
		"python3":                   "'" + python + "'",
		"psql":                      "'" + s.sql.Psql() + "'",
		"kafka-console-consumer.sh": java + "org.apache.kafka.tools.consumer.ConsoleConsumer",
		"kafka-topics.sh":           java + "org.apache.kafka.tools.TopicCommand",
		"connect-standalone.sh":     java + "org.apache.kafka.connect.cli.ConnectStandalone",
	} {
		script := "#!/bin/sh\nexec " + command + " \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// stop stops what runs and takes away what it left, but not after an error, so that logs can be read.
func (s *servers) stop() error {
	var errs []string
	note := func(err error) {
		if err != nil {
			errs = append(errs, err.Error())
		}
	}
	if s.plane != nil {
		note(s.plane.Stop())
	}
	if s.kafka != nil {
		note(s.kafka.Stop())
	}
	if s.sql != nil {
		note(s.sql.Stop())
	}
	if len(errs) > 0 {
		return fmt.Errorf("%s (see %s)", strings.Join(errs, "; "), s.dir)
	}
	return os.RemoveAll(s.dir)
}
