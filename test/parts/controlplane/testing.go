package controlplane

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

// ForTest starts a control plane of a test's own, which ends with it. The test is skipped where integration tests are.
func ForTest(t testing.TB) *ControlPlane {
	t.Helper()
	require.Integration(t)
	c, err := Start(context.Background(), Options{Dir: t.TempDir()}) // not the test's context: that ends before the cleanups
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Shared is a control plane that tests of a package share, because each of them keeps to objects of its own. The zero value
// starts one with the first test that asks for it.
type Shared struct {
	// Options are those that it is started with, in a directory of its own. Set them before the first test.
	Options Options

	start sync.Once
	plane *ControlPlane
	dir   string
	err   error
}

// ForTest returns the control plane. The test is skipped where integration tests are.
func (s *Shared) ForTest(t testing.TB) *ControlPlane {
	t.Helper()
	require.Integration(t)
	s.start.Do(func() {
		if s.dir, s.err = os.MkdirTemp("", "kubecdc-controlplane-"); s.err == nil {
			o := s.Options
			o.Dir = s.dir
			s.plane, s.err = Start(context.Background(), o)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.plane
}

// Stop stops the control plane if there is one, and removes its files. Call it when all tests have ended.
func (s *Shared) Stop() error {
	if s.plane == nil {
		return nil
	}
	return errors.Join(s.plane.Stop(), os.RemoveAll(s.dir))
}
