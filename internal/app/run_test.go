package app

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/internal/config"
)

func TestASignalAndItsEchoStopInOrder(t *testing.T) {
	var log bytes.Buffer
	ctx, release := contextUntilSignal(context.Background(), slog.New(slog.NewTextHandler(&log, nil)), time.Hour)
	arrived := make(chan os.Signal, 2)
	signal.Notify(arrived, syscall.SIGTERM)
	defer signal.Stop(arrived)
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a hard stop would end this test with exit code 1
		if err := self.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-arrived
		<-ctx.Done()
	}
	release()
	if n := strings.Count(log.String(), "stopping;"); n != 1 {
		t.Errorf("%d lines say that it stops: %s", n, log.String())
	}
}

// TestTheLogHasNoBodiesOfRequests: client-go writes whole objects at the verbosity of 8 and more.
func TestTheLogHasNoBodiesOfRequests(t *testing.T) {
	var log bytes.Buffer
	newLogger(config.Log{Level: "debug"}, &slog.LevelVar{}, mask{}, &log)
	t.Cleanup(SilenceClientLogs)
	logger := klog.Background()
	logger.V(8).Info("a body")
	logger.V(4).Info("a retry")
	if got := log.String(); strings.Contains(got, "a body") || !strings.Contains(got, "a retry") || logger.V(8).Enabled() {
		t.Errorf("logged: %s", got)
	}
}
