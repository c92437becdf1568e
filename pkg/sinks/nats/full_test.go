package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

// Limits of a server, for its whole store and for one account.
const (
	smallServer  = "jetstream { store_dir: %q, max_file_store: 1000000 }\n"
	smallAccount = "jetstream { store_dir: %q }\naccounts { A { jetstream: { max_file: 1000000 }, users: [{user: all, password: secret}] } }\n"
)

// Whichever limit is reached, the sink waits, names the limit, and continues where it was when there is space again.
func TestAFullServerHoldsTheSinkAndLosesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		server string
		stream jetstream.StreamConfig
		reason string
	}{
		"messages of the stream": {"", jetstream.StreamConfig{MaxMsgs: 10}, `stream "K8S" cannot store more`},
		"messages, in batches":   {"", jetstream.StreamConfig{MaxMsgs: 10, AllowBatchPublish: true}, `stream "K8S" cannot store more`},
		"bytes of the stream":    {"", jetstream.StreamConfig{MaxBytes: 10_000}, `stream "K8S" cannot store more`},
		"bytes of the account":   {smallAccount, jetstream.StreamConfig{}, `no space for stream "K8S"`},
		"bytes of the server":    {smallServer, jetstream.StreamConfig{}, `no space for stream "K8S"`},
	} {
		t.Run(name, func(t *testing.T) {
			config := test.server
			if config != "" {
				config = fmt.Sprintf(config, t.TempDir())
			}
			server := startServer(t, config)
			js := connectClient(t, server.URL(), nats.UserInfo("all", "secret"))
			limited := test.stream
			limited.Name, limited.Subjects, limited.Discard = "K8S", []string{"k8s.>"}, jetstream.DiscardNew
			createStream(t, js, limited)
			fillServer(t, js)
			s := openSink(t, asUser(testConfig(server.URL()), "all"), discardLog)

			next := publishUntilRefused(t, s)
			for range 3 {
				mustBeUnavailable(t, s, newPod("web", next), test.reason)
			}
			deleteStream(t, js, "FILLER")
			limited.MaxMsgs, limited.MaxBytes = 0, 0
			updateStream(t, js, limited)
			mustPublish(t, s, newPod("web", next), newPod("web", next+1))

			mustHoldVersions(t, js, next+1)
		})
	}
}

// fillServer creates a stream that uses most of the available space.
func fillServer(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	createStream(t, js, jetstream.StreamConfig{Name: "FILLER", Subjects: []string{"filler"}})
	for range 9 {
		if _, err := js.Publish(t.Context(), "filler", bytes.Repeat([]byte("x"), 100_000)); err != nil {
			t.Fatal(err)
		}
	}
}

// publishUntilRefused publishes versions of one pod, from 1 on, and returns the first one that is not accepted.
func publishUntilRefused(t *testing.T, s *Sink) (version int) {
	t.Helper()
	for version = 1; version <= 2000; version++ {
		n, err := publishChanges(t, s, newPod("web", version))
		var away *sinks.UnavailableError
		if errors.As(err, &away) {
			return version
		}
		if n != 1 || err != nil {
			t.Fatalf("version %d: %d, %v", version, n, err)
		}
	}
	t.Fatal("no version was refused")
	return 0
}

// A stream buffers messages up to a limit when they arrive faster than it stores them. This server has the lowest limit, one
// message, and refuses messages meanwhile.
func TestAnOverloadedStreamLosesRepeatsAndReordersNothing(t *testing.T) {
	t.Parallel()
	server := startServer(t, fmt.Sprintf("jetstream { store_dir: %q, max_buffered_msgs: 1 }\n", t.TempDir()))
	var overloads atomic.Int64
	h := sinktest.Harness{
		New: func(t testing.TB) sinks.Sink {
			return overloadCounter{newSink(t, testConfig(server.URL()), discardLog), &overloads}
		},
		Read: func(t testing.TB) []sinktest.Delivered {
			return readDelivered(t, connectClient(t, server.URL()), "K8S")
		},
		ExactRetry: true, OrderPerObject: true,
	}
	sinktest.PublishRandomly(t, h, rand.New(rand.NewPCG(1, 3)), 10, 20)
	if overloads.Load() == 0 {
		t.Error("the stream was never overloaded")
	}
}

// overloadCounter counts the errors of an overloaded stream.
type overloadCounter struct {
	*Sink
	count *atomic.Int64
}

func (o overloadCounter) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := o.Sink.Publish(ctx, lane, batch)
	if err != nil && strings.Contains(err.Error(), `stream "K8S" is overloaded`) {
		o.count.Add(1)
	}
	return n, err
}
