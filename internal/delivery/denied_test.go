package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// The NATS sink has one lane until a subject is denied: its objects must not stop the others, on a real server.
func TestADeniedSubjectParksOnlyItsLane(t *testing.T) {
	require.Integration(t)
	server, err := natsserver.Start(t.Context(), natsserver.Options{Dir: t.TempDir(), Config: `authorization {
  users: [{user: u, password: secret, permissions: {publish: {deny: "k8s.*.*.secrets.>"}}}]
}
`})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Kill(); err != nil {
			t.Error(err)
		}
	})
	const changes, denied = 2000, 250 // of every 500
	var records []event.Record
	allowed := uint64(0)
	for i := 1; i <= changes; i++ {
		resource := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
		if i%500 == denied {
			resource = event.Resource{Version: "v1", Resource: "secrets", Kind: "Secret"}
		} else {
			allowed++
		}
		name := fmt.Sprint(resource.Kind, i%50)
		records = append(records, event.Record{Offset: uint64(i), Change: &event.Change{Type: event.Updated, Cluster: "c", Resource: resource,
			Namespace: "shop", Name: name, UID: name, ResourceVersion: fmt.Sprint(i), After: []byte(`{"a":1}`)}})
	}
	sink, err := nats.New(nats.Config{URL: server.URL(), Stream: "K8S", Subject: "k8s.{cluster}.{group}.{resource}.{namespace}.{name}",
		User: "u", Password: credentials.Text("secret"), AllowCleartextCredentials: true, Create: nats.Create{Enabled: true}}, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Workers: sink.Concurrency(), NewestOffset: changes}
	cfg.BatchMessages, cfg.BatchBytes = sink.BatchLimits()
	p := New("nats", sink, "layout", journalOf(records, &storedProgress{}), event.Cursor{}, cfg, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := sink.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for begun := time.Now(); ; <-pause.C {
		s := p.Stats()
		if s.Delivered == allowed && len(s.FailingLanes) == 1 && strings.Contains(s.FailingLanes[0].Cause, `may not publish to "k8s.c.core.secrets.shop.Secret0"`) {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("delivered %d of %d that may be; in trouble: %+v", s.Delivered, allowed, s.FailingLanes)
		}
	}
}
