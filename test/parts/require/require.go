package require

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Integration skips the test if integration tests are switched off, and fails it if they are required nevertheless.
// Call it first in a test that starts a real server.
func Integration(t testing.TB) {
	t.Helper()
	switch {
	case os.Getenv("KUBECDC_INTEGRATION") == "0":
		Skip(t, "KUBECDC_INTEGRATION=0 switches integration tests off")
	case testing.Short():
		Skip(t, "-short switches integration tests off")
	}
}

// Program skips the test if a program is not installed, and fails it if integration tests are required. remedy tells
// the reader what to install.
func Program(t testing.TB, name, remedy string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		Skip(t, fmt.Sprintf("%s is not installed: %s", name, remedy))
	}
}

// Skip skips the test loudly, or fails it where REQUIRE_INTEGRATION=1 is set. Standard error is used beside the
// test's own log, because a passing package shows no log.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("REQUIRE_INTEGRATION") == "1" {
		t.Fatalf("REQUIRE_INTEGRATION=1 and this test would be skipped: %s", reason)
	}
	fmt.Fprintf(os.Stderr, "SKIPPED %s: %s\n", t.Name(), reason)
	t.Skip(reason)
}

// Long leaves a test to the pipeline, and to whoever sets REQUIRE_INTEGRATION=1: it takes more time than a check of each
// change is worth, and others hold its promise in a smaller form. Call it first.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv("REQUIRE_INTEGRATION") != "1" {
		t.Skip("it takes long: REQUIRE_INTEGRATION=1 runs it, as in the pipeline")
	}
}
