package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// shell runs a script; its log is in the test's own directory.
func shell(t *testing.T, script string) Options {
	t.Helper()
	return Options{
		Name: "script",
		Path: "/bin/sh",
		Args: []string{"-c", script},
		Log:  filepath.Join(t.TempDir(), "script.log"),
	}
}

// fileExists is ready when a script has got as far as to create the file.
func fileExists(path string) func(context.Context) error {
	return func(context.Context) error {
		_, err := os.Stat(path)
		return err
	}
}

func TestStartReturnsWhenTheChildIsReady(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "ready")
	options := shell(t, "touch "+flag+"; exec sleep 1000")
	options.Ready = fileExists(flag)
	p, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if !p.ended() {
		t.Fatal("Stop returned before the child ended")
	}
}

func TestAChildThatDiesBeforeItIsReadySaysWhy(t *testing.T) {
	options := shell(t, "echo cannot open the store >&2; exit 7")
	options.Ready = func(context.Context) error { return errors.New("not yet") }
	_, err := Start(t.Context(), options)
	var exit *ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("Start: %v, want an ExitError", err)
	}
	for _, want := range []string{"script", "exit status 7", "cannot open the store"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not hold %q: %v", want, err)
		}
	}
}

func TestATimeoutTellsWhatReadySaidLast(t *testing.T) {
	options := shell(t, "exec sleep 1000")
	options.Ready = func(context.Context) error { return errors.New("no namespace default") }
	options.ReadyTimeout = 200 * time.Millisecond
	_, err := Start(t.Context(), options)
	if err == nil || !strings.Contains(err.Error(), "no namespace default") || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Start: %v", err)
	}
}

func TestAMissingProgramIsAnError(t *testing.T) {
	_, err := Start(t.Context(), Options{Name: "nothing", Path: "/no/such/program", Log: filepath.Join(t.TempDir(), "log")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("Start: %v", err)
	}
}

func TestStopKillsAChildThatIgnoresIt(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "deaf")
	options := shell(t, "trap '' TERM; touch "+flag+"; while :; do sleep 1; done")
	options.Ready = fileExists(flag)
	options.Grace = 100 * time.Millisecond
	p, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Fatalf("Stop: %v", err)
	}
	if !p.ended() {
		t.Fatal("the child lives on")
	}
}

func TestStopReportsAChildThatDiedUnasked(t *testing.T) {
	p, err := Start(t.Context(), shell(t, "echo out of memory; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Fatalf("Stop: %v", err)
	}
}

func TestStopAfterKillIsQuiet(t *testing.T) {
	p, err := Start(t.Context(), shell(t, "exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Kill(), p.Kill(), p.Stop()); err != nil {
		t.Fatal(err)
	}
}

func TestAServiceComesBack(t *testing.T) {
	service := NewService(shell(t, "exec sleep 1000"))
	if err := service.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := service.Start(t.Context()); err == nil {
		t.Fatal("a second Start of a running service is taken")
	}
	first := service.Process().Pid()
	if err := errors.Join(service.Kill(), service.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if service.Process().Pid() == first {
		t.Fatal("the killed process is back")
	}
	if err := errors.Join(service.Stop(), service.Stop(), service.Kill()); err != nil {
		t.Fatal(err)
	}
}
