package leaks

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a goroutine may take to end. It is never slept in full unless one stays.
const patience = time.Minute

// Main runs the tests of a package, for its TestMain, and ends the process: with the tests' exit code, or with 1 when
// they passed and a goroutine is left that the options do not allow.
func Main(m *testing.M, options ...goleak.Option) {
	MainWithServers(m, func() error { return nil }, options...)
}

// MainWithServers is Main for tests that share servers. It stops them before it looks for goroutines.
func MainWithServers(m *testing.M, stop func() error, options ...goleak.Option) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the servers:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := find(time.Now().Add(patience), options...); err != nil {
			fmt.Fprintf(os.Stderr, "goroutines are left after tests that passed: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// find returns nil as soon as nothing is left, and else what is left at the deadline.
func find(deadline time.Time, options ...goleak.Option) error {
	for {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
