package controlplane

import (
	"context"
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
