package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
	"github.com/kubecdc/kubecdc/test/bench/stamped"
)

// situation is an exporter and what it has to cope with.
type situation struct {
	name  string
	space string                          // its namespace and stream
	with  func(context.Context, *senders) // sends it audit events while it is measured; nil: no audit
	other *situation                      // gets its own audit events while this one is measured; nil: none

	from     *senders
	exporter *pipeline.Exporter
	took     [][]time.Duration // by turn
	cpu      time.Duration     // in its turns
}

func (b *bench) situations() []*situation {
	flooded := &situation{
		name: fmt.Sprintf("%d events a second", b.events), space: "flood",
		with: func(ctx context.Context, s *senders) { s.flood(ctx, b.events) },
	}
	return []*situation{
		{name: "without audit", space: "off"},
		{name: "without audit, again", space: "again"},
		{name: "no events come", space: "idle", with: func(ctx context.Context, _ *senders) { <-ctx.Done() }},
		flooded,
		{name: "as many, to another one", space: "beside", other: flooded},
		{name: "clients stall", space: "stall", with: func(ctx context.Context, s *senders) { s.stall(ctx) }},
	}
}

// start makes the namespace, the stream and the exporter.
func (s *situation) start(ctx context.Context, b *bench) error {
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": s.space}}}
	_, err := b.client.Resource(namespaces).Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := stamped.Create(ctx, b.client, s.space); err != nil {
		return err
	}
	if _, err := b.js.CreateStream(ctx, jetstream.StreamConfig{Name: s.space, Subjects: []string{s.space + ".>"}}); err != nil {
		return err
	}
	dir := filepath.Join(b.dir, s.space)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	routing := stamped.Routing(b.server.URL(), s.space, s.space)
	if s.with != nil {
		if s.from, err = newSenders(dir); err != nil {
			return err
		}
		routing += s.from.settings()
	}
	s.exporter, err = pipeline.StartExporter(ctx, b.program, dir, b.plane.Kubeconfig(), routing)
	return err
}

func (s *situation) stop() error {
	if s.exporter == nil {
		return nil
	}
	return s.exporter.Stop()
}

// turn makes changes, and has audit events sent meanwhile.
func (s *situation) turn(ctx context.Context, b *bench, number int) (err error) {
	if sent := cmp.Or(s.other, s); sent.with != nil {
		sending, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); sent.with(sending, sent.from) }()
		defer func() { stop(); <-done }()
	}
	before := s.exporter.Usage().CPU
	all := b.changes + b.changes/2
	answered, err := stamped.Write(ctx, b.client, s.space, number, b.rate, all)
	if err != nil {
		return err
	}
	stamps, err := stamped.Stamps(ctx, b.js, s.space, number, all)
	if err != nil {
		return err
	}
	s.cpu += s.exporter.Usage().CPU - before
	var took []time.Duration
	for i := b.changes / 2; i < all; i++ {
		took = append(took, stamps[i].Stored.Sub(answered[i]))
	}
	s.took = append(s.took, took)
	stream, err := b.js.Stream(ctx, s.space)
	if err != nil {
		return err
	}
	return stream.Purge(ctx) // the next turn does not read this one
}

// at is what a part of the changes did not exceed.
func (s *situation) at(part float64) time.Duration { return quantile(slices.Concat(s.took...), part) }

// inTurn is what a part of the changes did not exceed in the middle one of the turns: a pause of the machine makes a few
// turns slow, and proves nothing here.
func (s *situation) inTurn(part float64) time.Duration {
	var turns []time.Duration
	for _, took := range s.took {
		turns = append(turns, quantile(took, part))
	}
	return quantile(turns, 0.5)
}

func quantile(all []time.Duration, part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(part*float64(len(sorted)-1))]
}
