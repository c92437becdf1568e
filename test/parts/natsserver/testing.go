package natsserver

import (
	"cmp"
	"context"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

// ForTest starts a server of a test's own, which ends with it; without a directory it has a temporary one. The test is
// skipped where integration tests are.
func ForTest(t testing.TB, options Options) *Server {
	t.Helper()
	require.Integration(t)
	options.Dir = cmp.Or(options.Dir, t.TempDir())
	s, err := Start(context.Background(), options) // not the test's context: that ends before the cleanups
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	return s
}
