package nats

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// deliverSkippingRejected publishes changes as delivery does: what is rejected is skipped, and what is not delivered is
// tried again. It returns the rejections by name.
func deliverSkippingRejected(t *testing.T, s *Sink, changes ...*event.Change) map[string]error {
	t.Helper()
	rejected := map[string]error{}
	var batch []sinks.Message
	for _, c := range changes {
		batch = append(batch, sinks.Message{Offset: offsets.Add(1), Change: c})
	}
	for len(batch) > 0 {
		n, err := s.Publish(t.Context(), singleLane, batch)
		batch = batch[n:]
		var refused *sinks.RejectedError
		var away *sinks.UnavailableError
		switch {
		case errors.As(err, &refused):
			rejected[batch[0].Change.Name] = err
			batch = batch[1:]
		case err != nil && !errors.As(err, &away) && !errors.Is(err, connection.ErrUnanswered):
			t.Fatal(err)
		}
	}
	return rejected
}

// TestANameTooLongForTheServerIsRejectedAndTheOthersArrive: nats-server closes the connection at a line of the protocol that
// is too long, and does not announce the limit.
func TestANameTooLongForTheServerIsRejectedAndTheOthersArrive(t *testing.T) {
	for _, server := range []struct {
		config            string
		fitting, tooLong  int // lengths of names
		largest, firstBad int // names around the limit; the subject has ten bytes more, the reply subject fewer than 110
	}{
		{"", 3000, 5000, 3900, 4100},
		{"max_control_line: 1024\n", 500, 1500, 850, 1040},
		{"max_control_line: 16KB\n", 9000, 17000, 16200, 16400},
	} {
		for _, way := range []string{"batches", "message IDs"} {
			t.Run(fmt.Sprintf("%q/%s", server.config, way), func(t *testing.T) {
				t.Parallel()
				running := startServer(t, server.config)
				cfg := testConfig(running.URL())
				if way == "message IDs" {
					createStreamWithoutBatches(t, running)
				}
				s := openSink(t, cfg, discardLog)
				name := func(length int) *event.Change { return newPod(strings.Repeat("n", length), 1) }
				sent := []*event.Change{newPod("first", 1), name(server.fitting), name(server.tooLong), newPod("second", 1),
					name(server.tooLong + 1), newPod("third", 1)}
				rejected := deliverSkippingRejected(t, s, sent...)
				if len(rejected) != 2 {
					t.Errorf("%d rejected, want the two that are too long", len(rejected))
				}
				for name, err := range rejected {
					if len(name) < server.tooLong || !strings.Contains(err.Error(), "max_control_line") {
						t.Errorf("a name of %d bytes: %v", len(name), err)
					}
				}
				var around []*event.Change // lengths around the limit: each is either delivered or rejected
				for length := server.largest; length < server.firstBad; length += 3 {
					around = append(around, name(length))
				}
				sent = append(append(sent, around...), newPod("last", 1))
				for name, err := range deliverSkippingRejected(t, s, append(around, newPod("last", 1))...) {
					rejected[name] = err
				}
				var want []string
				for _, c := range sent {
					if rejected[c.Name] == nil {
						want = append(want, fmt.Sprintf("%.10s %d", c.Name, len(c.Name)))
					}
				}
				if len(rejected) == 2 || rejected["last"] != nil || len(want) <= 5 {
					t.Errorf("%d of %d rejected", len(rejected), len(sent))
				}
				for _, c := range sent { // what is as long as another message that arrives is not rejected; headers differ by a few bytes
					for refused := range rejected {
						if rejected[c.Name] == nil && len(c.Name) > len(refused)+10 {
							t.Errorf("a name of %d bytes is delivered, and one of %d rejected", len(c.Name), len(refused))
						}
					}
				}
				var got []string
				for _, m := range readMessages(t, connectClient(t, running.URL()), "K8S") {
					name := m.Subject()[strings.LastIndexByte(m.Subject(), '.')+1:]
					got = append(got, fmt.Sprintf("%.10s %d", name, len(name)))
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("delivered %q\nwant %q", got, want)
				}
			})
		}
	}
}
