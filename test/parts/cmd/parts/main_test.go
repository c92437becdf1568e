package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

func TestPartsStartInOneOrderHoweverTheyAreNamed(t *testing.T) {
	all := []string{"controlplane", "nats", "kafka"}
	for _, words := range [][]string{nil, {"all"}, {"kafka,nats", "controlplane"}} {
		if parts, err := partNames(words); err != nil || !slices.Equal(parts, all) {
			t.Errorf("partNames(%q) = %q, %v", words, parts, err)
		}
	}
	if _, err := partNames([]string{"kafka", "redis"}); !errors.Is(err, errUsage) || !strings.Contains(err.Error(), `"redis"`) {
		t.Errorf("an unknown part: %v", err)
	}
}

func TestFlagsMayStandAfterTheParts(t *testing.T) {
	o, err := parseUp([]string{"nats", "--dir", "/d", "kafka", "--nats-port=4222"})
	if err != nil || o.dir != "/d" || o.natsPort != 4222 || !slices.Equal(o.parts, []string{"nats", "kafka"}) {
		t.Fatalf("parseUp: %+v, %v", o, err)
	}
	if _, err := parseUp([]string{"nats"}); !errors.Is(err, errUsage) {
		t.Fatalf("parseUp without --dir: %v", err)
	}
}

func TestUpTellsWhereThePartsAreAndStopsWhenTold(t *testing.T) {
	require.Integration(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	ended := make(chan error, 1)
	go func() { ended <- command(ctx, []string{"up", "nats", "--dir", dir}, &out) }()

	file := filepath.Join(dir, "parts.env")
	deadline := time.Now().Add(2 * time.Minute)
	for {
		text, err := os.ReadFile(file)
		if err == nil {
			if !strings.HasPrefix(string(text), "NATS_URL=nats://127.0.0.1:") {
				t.Errorf("%s holds %q", file, text)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no parts.env")
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "NATS_URL=") {
		t.Errorf("it printed %q", out.String())
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", file, err)
	}
}
