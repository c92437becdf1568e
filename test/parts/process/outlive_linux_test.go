package process

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds waits that end by a condition when all is well.
const patience = 2 * time.Minute

// ending selects how a re-executed test binary ends after it has started a child of its own.
const ending = "KUBECDC_TEST_ENDING"

func TestMain(m *testing.M) {
	if how := os.Getenv(ending); how != "" {
		startAndEnd(how)
	}
	os.Exit(m.Run())
}

// startAndEnd plays a test process that starts a server and then ends without any clean-up.
func startAndEnd(how string) {
	log := filepath.Join(os.TempDir(), "sleep.log")
	p, err := Start(context.Background(), Options{Name: "sleep", Path: "/bin/sleep", Args: []string{"1000"}, Log: log})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.Pid())
	switch how {
	case "panic":
		panic("a test failed badly")
	case "panic in a goroutine":
		go panic("a goroutine failed badly")
	case "SIGKILL":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "exit":
		os.Exit(0)
	}
	select {}
}

func TestNothingOutlivesAPanic(t *testing.T)             { dieAndLook(t, "panic") }
func TestNothingOutlivesAPanicInAGoroutine(t *testing.T) { dieAndLook(t, "panic in a goroutine") }
func TestNothingOutlivesSIGKILL(t *testing.T)            { dieAndLook(t, "SIGKILL") }
func TestNothingOutlivesAnExit(t *testing.T)             { dieAndLook(t, "exit") }

// dieAndLook runs a parent with the given ending, and waits until its child is gone.
func dieAndLook(t *testing.T, how string) {
	t.Helper()
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), ending+"="+how, "TMPDIR="+t.TempDir())
	out, err := parent.Output()
	if how != "exit" && err == nil {
		t.Fatalf("the parent ended well, want it to end by %s", how)
	}
	line, _, err := bufio.NewReader(bytes.NewReader(out)).ReadLine()
	if err != nil {
		t.Fatalf("the parent told no process ID: %v", err)
	}
	pid, err := strconv.Atoi(string(line))
	if err != nil {
		t.Fatalf("the parent could not start a child: %s", out)
	}
	awaitGone(t, pid, how)
}

func awaitGone(t *testing.T, pid int, how string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for alive(pid) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d outlived its parent's %s", pid, how)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestNothingOutlivesStop(t *testing.T) {
	options, pid := shell(t, "sleep 1000 & echo $!; wait"), 0
	options.Ready = func(context.Context) error {
		text, err := os.ReadFile(options.Log)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	}
	p, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pid, "Stop")
}

// alive reports whether a process runs. One that is dead and not yet waited for counts as gone: its new parent may
// take its time.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

func TestUsageCountsWhatTheChildDid(t *testing.T) {
	p, err := Start(t.Context(), shell(t, "while :; do :; done"))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for p.Usage().CPU < 20*time.Millisecond {
		if time.Now().After(deadline) {
			t.Fatal("a busy child uses no CPU time")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	u := p.Usage()
	if u.CPU < 20*time.Millisecond || u.PeakRSS < 100<<10 || u.PeakRSS > 50<<20 {
		t.Fatalf("usage of a small shell = %+v", u)
	}
}
