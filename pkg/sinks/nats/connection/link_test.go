package connection

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestAConnectionIsAwaitedUntilTheLibraryReportsIt delays the library's connect handler: until it runs, the sink would
// publish while its status is not connected.
func TestAConnectionIsAwaitedUntilTheLibraryReportsIt(t *testing.T) {
	require.Integration(t)
	server, err := natsserver.Start(t.Context(), natsserver.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill() //nolint:errcheck // the test is over
	var absence Outage
	absence.mu.Lock()
	l := Dial(Options{URL: server.URL(), InboxPrefix: nats.InboxPrefix[:len(nats.InboxPrefix)-1], Timeout: 3 * time.Minute,
		Authenticate: func() ([]nats.Option, func() bool, error) { return nil, nil, nil }}, &absence)
	<-l.dialled
	for !l.nc.IsConnected() && t.Context().Err() == nil { // the first attempt may have taken too long
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := l.awaitConnected(ctx); !l.nc.IsConnected() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connected is %v, awaited: %v", l.nc.IsConnected(), err)
	}
	absence.mu.Unlock()
	if err := l.WaitConnected(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
