package main

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestEveryWayIsMeasuredInEveryRound(t *testing.T) {
	require.Integration(t)
	var out strings.Builder
	if err := run(t.Context(), "nats", load{messages: 400, rounds: 2}, &out); err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"PublishAsync, window 1024 ", "with message IDs", "in batches", "by message ID"} {
		if !strings.Contains(out.String(), way) {
			t.Errorf("nothing is said of %q:\n%s", way, out.String())
		}
	}
}
