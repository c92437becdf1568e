package require

import (
	"fmt"
	"runtime"
	"testing"
)

// recorder notes what a test would have done. The embedded interface is nil: a method that is not here must not be
// called.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper()      {}
func (r *recorder) Name() string { return "TestRecorded" }

func (r *recorder) Skip(args ...any) {
	r.skipped = fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// record runs a check as a test would, on a goroutine of its own, since Skip and Fatalf end it.
func record(check func(testing.TB)) *recorder {
	r := new(recorder)
	done := make(chan struct{})
	go func() {
		defer close(done)
		check(r)
	}()
	<-done
	return r
}

func TestIntegrationTestsRunByDefault(t *testing.T) {
	if testing.Short() {
		t.Skip("-short asks for the opposite")
	}
	t.Setenv("KUBECDC_INTEGRATION", "")
	t.Setenv("REQUIRE_INTEGRATION", "")
	if r := record(Integration); r.skipped != "" || r.failed != "" {
		t.Fatalf("%+v", r)
	}
}

func TestASkipSaysWhy(t *testing.T) {
	t.Setenv("KUBECDC_INTEGRATION", "0")
	t.Setenv("REQUIRE_INTEGRATION", "")
	if r := record(Integration); r.skipped == "" || r.failed != "" {
		t.Fatalf("%+v", r)
	}
}

func TestWhereIntegrationIsRequiredASkipFails(t *testing.T) {
	t.Setenv("REQUIRE_INTEGRATION", "1")
	t.Setenv("KUBECDC_INTEGRATION", "0")
	if r := record(Integration); r.failed == "" || r.skipped != "" {
		t.Fatalf("switched off: %+v", r)
	}
	missing := func(t testing.TB) { Program(t, "no-such-program", "install it") }
	if r := record(missing); r.failed == "" || r.skipped != "" {
		t.Fatalf("a missing program: %+v", r)
	}
}

func TestALongTestIsForThePipeline(t *testing.T) {
	t.Setenv("REQUIRE_INTEGRATION", "")
	if r := record(Long); r.skipped == "" || r.failed != "" {
		t.Fatalf("%+v", r)
	}
	t.Setenv("REQUIRE_INTEGRATION", "1")
	if r := record(Long); r.skipped != "" || r.failed != "" {
		t.Fatalf("required: %+v", r)
	}
}
