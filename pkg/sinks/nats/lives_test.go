package nats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/lives"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// TestRandomLivesOfStreamsLoseAndRepeatNothing is the model of package lives on a stream that takes batches, and on one that
// does not. LIVES_SEEDS makes it long.
func TestRandomLivesOfStreamsLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	for _, seed := range lives.Seeds(t, 4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := &streamLives{T: t, dir: t.TempDir(), state: startServer(t, ""), batches: seed%4 != 2}
			l.server = startServerIn(t, l.dir)
			l.create()
			lives.Play(t, seed, l.bus())
		})
	}
}

// observedSink passes on what is published.
type observedSink struct {
	*Sink
	observe func([]sinks.Message)
}

func (o *observedSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	o.observe(batch)
	return o.Sink.Publish(ctx, lane, batch)
}

// streamLives is what happens to a stream.
type streamLives struct {
	*testing.T
	dir     string
	server  *natsserver.Server
	state   *natsserver.Server // has the replicated state
	batches bool
	copied  bool
	// older: it is an older copy, perhaps one of since it was looked up last. Only its sequences show that then, so no other
	// client moves it past those.
	older bool
}

func (l *streamLives) bus() lives.Bus {
	return lives.Bus{
		AtLeastOnce: !l.batches,
		Open: func(observe func([]sinks.Message)) sinks.Sink {
			cfg := shortTimeoutConfig(l.server.URL())
			cfg.Create.Enabled = false
			return &observedSink{newSink(l, cfg, discardLog), observe}
		},
		State: func() (sinks.StateStore, func()) {
			s := newSink(l, testConfig(l.state.URL()), discardLog)
			store, err := s.OpenState("STATE")
			if err != nil {
				l.Fatal(err)
			}
			return store, func() {
				if err := s.Close(context.Background()); err != nil {
					l.Error(err)
				}
			}
		},
		Compare: func(s sinks.Sink) error { // as a Publish a minute later does
			o := s.(*observedSink)
			o.verifier.lastLook.Store(&time.Time{})
			link, err := o.verifiedLink(l.Context())
			if err != nil {
				return err
			}
			return o.batches.compareTerm(l.Context(), link)
		},
		Read: func() (all []lives.Stored) {
			for _, m := range readMessages(l, connectClient(l, l.server.URL()), "K8S") {
				all = append(all, lives.Stored{Lane: "stream", Key: m.Subject(), ID: changeIDOf(m.Headers(), m.Data())})
			}
			return all
		},
		Events: []lives.Event{
			{Name: "recreate", Do: l.recreate},
			{Name: "copy, or go back to it", Do: l.goBack},
			{Name: "copy, or go back to it", Do: l.goBack},
			{Name: "outage", Do: func(_ *rand.Rand, meanwhile func()) lives.Effect {
				whileStopped(l.T, l.server, meanwhile)
				return lives.Nothing
			}},
			{Name: "foreign writer", Do: l.writeForeign},
		},
	}
}

func (l *streamLives) create() {
	createStream(l.T, connectClient(l, l.server.URL()), jetstream.StreamConfig{
		Name: "K8S", Subjects: []string{"k8s.>", "kubecdc.fence.K8S.>"}, AllowBatchPublish: l.batches,
	})
}

// recreate deletes the stream and creates another one, which is filled from the journal.
func (l *streamLives) recreate(random *rand.Rand, meanwhile func()) lives.Effect {
	deleteStream(l, connectClient(l, l.server.URL()), "K8S")
	if random.IntN(2) == 0 {
		meanwhile()
	}
	l.create()
	l.copied, l.older = false, false
	if random.IntN(2) == 0 { // others move it past what exporters know of it, or not
		l.writeForeign(random, nil)
	}
	if err := os.RemoveAll(filepath.Join(l.dir, "store-old")); err != nil {
		l.Fatal(err)
	}
	return lives.Repeats
}

// goBack replaces the disk by an older copy, or takes one.
func (l *streamLives) goBack(random *rand.Rand, meanwhile func()) lives.Effect {
	at := filepath.Join(l.dir, "store")
	if l.copied = !l.copied; l.copied {
		whileStopped(l.T, l.server, func() { copyDir(l.T, at, at+"-old") })
		return lives.Nothing
	}
	whileStopped(l.T, l.server, func() {
		if random.IntN(2) == 0 {
			meanwhile()
		}
		replaceDir(l.T, at, at+"-old")
	})
	l.older = true
	return lives.Repeats
}

// writeForeign lets another client write: without an election, the exporter goes on by message ID.
func (l *streamLives) writeForeign(random *rand.Rand, _ func()) lives.Effect {
	n := 1 + random.IntN([]int{20, 4000}[random.IntN(2)])
	if l.older {
		return lives.Nothing
	}
	js := connectClient(l, l.server.URL())
	for range n {
		if _, err := js.Publish(l.Context(), "k8s.mine.a.b.c.d", []byte("mine")); err != nil {
			l.Fatal(err)
		}
	}
	return lives.Repeats
}
