package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestTheEpilogueNamesNothingThatCannotBePulled reads the images of what a user is asked to apply: none is published.
func TestTheEpilogueNamesNothingThatCannotBePulled(t *testing.T) {
	for _, word := range strings.Fields(epilogue) {
		root := filepath.Join("..", "..", word)
		if info, err := os.Stat(root); err != nil || !info.IsDir() || !strings.HasPrefix(word, "deploy/") {
			continue
		}
		err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err == nil && bytes.Contains(text, []byte("registry.invalid/")) {
				t.Errorf("%s: an image of registry.invalid cannot be pulled", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestTheEpilogueNamesFilesThatExist looks for each path of the checkout that the epilogue names.
func TestTheEpilogueNamesFilesThatExist(t *testing.T) {
	found := 0
	for _, word := range strings.FieldsFunc(epilogue, func(r rune) bool { return strings.ContainsRune(" \n,", r) }) {
		if path, _, _ := strings.Cut(word, "#"); strings.HasPrefix(path, "docs/") || strings.HasPrefix(path, "configs/") || strings.HasPrefix(path, "deploy/") {
			found++
			if _, err := os.Stat(filepath.Join("..", "..", path)); err != nil {
				t.Error(err)
			}
		}
	}
	if found == 0 {
		t.Error("the epilogue names no file")
	}
}

// playing makes a re-executed test binary run the demo.
const playing = "KUBECDC_TEST_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(playing) != "" {
		os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(runTests(m))
}

// programs is a directory for what tests build.
var programs string

func runTests(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "kubecdc-demo-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programs)
	return m.Run()
}

// performance is a demo that runs as a process of its own, with a temporary directory of its own.
type performance struct {
	t      *testing.T
	cmd    *exec.Cmd
	dir    string
	stdout io.ReadCloser
	lines  *bufio.Scanner
	output strings.Builder
	stderr bytes.Buffer
}

// perform starts the demo. It ends with the test at the latest.
func perform(t *testing.T, args ...string) *performance {
	t.Helper()
	require.Integration(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // the servers may have to be built
	t.Cleanup(cancel)
	p := &performance{t: t, dir: t.TempDir()}
	p.cmd = exec.CommandContext(ctx, os.Args[0], args...)
	p.cmd.Env = append(os.Environ(), playing+"=1", "TMPDIR="+p.dir)
	p.cmd.Stderr = &p.stderr
	var err error
	if p.stdout, err = p.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(p.stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// until reads what the demo prints until a line holds a text.
func (p *performance) until(text string) {
	p.t.Helper()
	for p.lines.Scan() {
		fmt.Fprintln(&p.output, p.lines.Text())
		if strings.Contains(p.lines.Text(), text) {
			return
		}
	}
	err := p.cmd.Wait()
	p.t.Fatalf("the demo ended (%v) without a line %q:\n%s%s", err, text, p.output.String(), p.stderr.String())
}

// end reads on to the end and checks the exit code.
func (p *performance) end(want int) {
	p.t.Helper()
	for p.lines.Scan() {
		fmt.Fprintln(&p.output, p.lines.Text())
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		p.t.Fatalf("exit code %d, want %d:\n%s%s", got, want, p.output.String(), p.stderr.String())
	}
}

func (p *performance) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// says checks that the demo has printed lines with these words, in this order.
func (p *performance) says(lines ...[]string) {
	p.t.Helper()
	rest := strings.Split(p.output.String(), "\n")
	for _, words := range lines {
		for len(rest) > 0 && !holds(rest[0], words) {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			p.t.Fatalf("no line holds %q, or not in its place:\n%s", words, p.output.String())
		}
		rest = rest[1:]
	}
}

func holds(line string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(line, word) {
			return false
		}
	}
	return true
}

// leftNothing checks that no file and no process is left.
func (p *performance) leftNothing() {
	p.t.Helper()
	files, err := os.ReadDir(p.dir)
	if err != nil {
		p.t.Fatal(err)
	}
	if len(files) > 0 {
		p.t.Errorf("files are left: %v", files)
	}
	if runtime.GOOS != "linux" {
		return
	}
	// Every process that the demo starts inherits the name of the temporary directory.
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, file := range environments {
		if environment, err := os.ReadFile(file); err == nil && bytes.Contains(environment, []byte("TMPDIR="+p.dir)) {
			p.t.Errorf("a process is left: %s", file)
		}
	}
}

// exporterUnderTest builds the exporter from the working tree, once for all tests.
func exporterUnderTest(t *testing.T) string {
	t.Helper()
	require.Integration(t)
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

var built = sync.OnceValues(func() (string, error) {
	root, err := build.Root()
	if err != nil {
		return "", err
	}
	program := filepath.Join(programs, "exporter")
	cmd := exec.Command("go", "build", "-o", program, "./cmd/exporter")
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the exporter: %w\n%s", err, output)
	}
	return program, nil
})

func TestTheDemoShowsEveryChangeAndLeavesNothing(t *testing.T) {
	p := perform(t, "--fast", "--exporter", exporterUnderTest(t))
	p.end(exitOK)
	p.says(
		[]string{"snapshot", "configmaps", "shop/settings"},
		[]string{"added", "deployments.apps", "shop/web"},
		[]string{"updated", "deployments.apps", "shop/web", "status.readyReplicas=2"},
		[]string{"updated", "deployments.apps", "shop/web", "spec.replicas 2→5"},
		[]string{"updated", "deployments.apps", "shop/web", "image nginx:1.27→nginx:1.29"},
		[]string{"updated", "configmaps", "shop/settings", "bob", "+data.banner=Sale!, -data.currency, data.theme light→dark"},
		[]string{"added", "crd", "deals.example.com", "carol"},
		[]string{"added", "deals.example.com", "shop/spring", "spec.percent=10"},
		[]string{"updated", "deals.example.com", "shop/spring", "spec.percent 10→25"},
		[]string{"> kill -9"},
		[]string{"> alice deletes the Deployment web"},
		[]string{"> start the exporter again"},
		[]string{"LIST requests since its restart: 0"},
		[]string{"missing", " 0"},
		[]string{"Nothing is lost."},
		[]string{"> exporter history log deploy/web -n shop"},
		[]string{"+ deployments.apps shop/web", "by alice"},
		[]string{"by autoscaler", "spec.replicas: 2 → 5"},
		[]string{"by pipeline", "nginx:1.27 → nginx:1.29"},
		[]string{"spec.replicas: 5 → 9"},
		[]string{"- deployments.apps shop/web"},
		[]string{"> exporter history blame configmap/settings -n shop"},
		[]string{"bob", "data.theme: dark"},
		[]string{"bin/exporter run --config my.yaml"},
	)
	// Changes of different objects during the absence may arrive in any order.
	afterwards := &performance{t: t}
	_, after, _ := strings.Cut(p.output.String(), "> start the exporter again")
	for _, words := range [][]string{
		{"updated", "shop/web", "spec.replicas 5→9"},
		{"deleted", "deployments.apps", "shop/web"},
		{"added", "shop/whisper"},
		{"deleted", "shop/whisper"},
	} {
		afterwards.output.Reset()
		afterwards.output.WriteString(after)
		afterwards.says(words)
	}
	if strings.Contains(p.output.String(), "\x1b") {
		t.Error("there are colours where no terminal is")
	}
	p.leftNothing()
}

func TestCtrlCWhileTheExporterIsAwayCleansUp(t *testing.T) {
	p := perform(t, "--exporter", exporterUnderTest(t))
	p.until("> kill -9")
	p.signal(os.Interrupt)
	p.end(exitOK)
	p.leftNothing()
}

func TestCtrlCWhileTheServersStartCleansUp(t *testing.T) {
	p := perform(t, "--exporter", exporterUnderTest(t))
	p.until("Start the parts")
	p.signal(os.Interrupt)
	p.end(exitOK)
	p.leftNothing()
}

// As with "make demo | head": there is no terminal any more to press Ctrl-C at.
func TestADemoThatNobodyReadsAnyMoreCleansUp(t *testing.T) {
	p := perform(t, "--exporter", exporterUnderTest(t))
	p.until("Listen")
	if err := p.stdout.Close(); err != nil {
		t.Fatal(err)
	}
	p.end(exitOK)
	p.leftNothing()
}

func TestKeepRunsUntilItIsToldToStop(t *testing.T) {
	p := perform(t, "--fast", "--keep", "--exporter", exporterUnderTest(t))
	p.until("export KUBECONFIG=")
	p.until("WHAT CHANGED")
	p.signal(syscall.SIGTERM)
	p.end(exitOK)
	p.leftNothing()
}

func TestAnExporterThatDoesNotStartIsToldWithItsLog(t *testing.T) {
	p := perform(t, "--fast", "--exporter", "/bin/false")
	p.end(exitFailed)
	if !strings.Contains(p.stderr.String(), "exporter ended before it was ready") {
		t.Errorf("standard error does not say what happened: %s", p.stderr.String())
	}
	if logs, err := filepath.Glob(filepath.Join(p.dir, "kubecdc-demo-*", "exporter.log")); err != nil || len(logs) != 1 {
		t.Errorf("the log is not kept: %v, %v", logs, err)
	}
}
