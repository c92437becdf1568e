package history

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestADiskThatIsFullOrReadOnlyLosesNothing: each is a condition with its own remedy, and what was refused is stored once
// when there is room again.
func TestADiskThatIsFullOrReadOnlyLosesNothing(t *testing.T) {
	place := t.TempDir()
	if err := syscall.Mount("tmpfs", place, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("NOT TESTED on a real disk that is full: a small one cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(place, 0)) })
	dir, ballast := filepath.Join(place, "history"), filepath.Join(place, "ballast")
	s := newSink(t, Config{Dir: dir})
	mustPublish(t, s, newMessages(1, 2))
	refused := func(code condition.Code, from, to int) {
		t.Helper()
		n, err := s.Publish(t.Context(), onlyLane, newMessages(from, to))
		var unavailable *sinks.UnavailableError
		if n != 0 || !errors.As(err, &unavailable) || unavailable.Code != code || unavailable.Remedy == "" {
			t.Errorf("publish: %d, %v", n, err)
		}
	}

	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	refused(condition.SinkFull, 3, 4)
	refused(condition.SinkFull, 3, 5)
	must(t, os.Remove(ballast))
	mustPublish(t, s, newMessages(3, 5))

	must(t, syscall.Mount("", place, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	refused(condition.SinkUnauthorized, 6, 6)
	var unavailable *sinks.UnavailableError
	if err := s.Ping(t.Context()); !errors.As(err, &unavailable) || unavailable.Code != condition.SinkUnauthorized {
		t.Errorf("ping: %v", err)
	}
	must(t, syscall.Mount("", place, "", syscall.MS_REMOUNT, ""))
	mustPublish(t, s, newMessages(6, 7))
	mustClose(t, s)
	wantRows(t, Config{Dir: dir}, 7)
}
