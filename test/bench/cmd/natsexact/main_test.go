package main

import (
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// The small size, which a pipeline has time for: connections are cut, and one process delivers.
func TestCutConnectionsLoseRepeatAndReorderNothing(t *testing.T) {
	require.Integration(t)
	if err := run(t.Context(), options{messages: 20_000, kill: time.Hour, cut: 100 * time.Millisecond, expire: time.Hour, inside: true}); err != nil {
		t.Fatal(err)
	}
}
