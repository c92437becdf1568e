package nats

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestStoredRecordsAreReadBackWithReadRightsAlone by a user that may look the stream up and read it, with direct access and
// without.
func TestStoredRecordsAreReadBackWithReadRightsAlone(t *testing.T) {
	t.Parallel()
	for _, direct := range []bool{true, false} {
		t.Run(fmt.Sprintf("direct access %t", direct), func(t *testing.T) {
			right := "$JS.API.STREAM.MSG.GET.K8S"
			if direct {
				right = "$JS.API.DIRECT.GET.K8S"
			}
			server := startServer(t, fmt.Sprintf(`authorization { users: [
				{user: admin, password: admin}
				{user: reader, password: reader, permissions: {publish: ["$JS.API.STREAM.INFO.K8S", %q], subscribe: "_INBOX.>"}}
				{user: stranger, password: stranger, permissions: {publish: "none", subscribe: "_INBOX.>"}}
			]}`+"\n", right))
			cfg := shortTimeoutConfig(server.URL())
			cfg.AllowCleartextCredentials, cfg.AckTimeout = true, testTimeout
			cfg.User, cfg.Password = "admin", credentials.Text("admin")
			js := connectClient(t, server.URL(), nats.UserInfo("admin", "admin"))
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
				Name: "K8S", Subjects: []string{"k8s.>"}, AllowBatchPublish: true, AllowDirect: direct,
			}); err != nil {
				t.Fatal(err)
			}
			s := openSink(t, cfg, discardLog)
			var want []string
			for version := 1; version <= 50; version++ {
				c := newPod(fmt.Sprint("web-", version%3), version)
				mustPublish(t, s, c)
				want = append(want, c.ID())
			}
			cfg.User, cfg.Password = "reader", credentials.Text("reader")
			got, lane := readStoredIDs(t, cfg, 0, 0)
			if !slices.Equal(got, want) || lane.First != 1 || lane.End != 51 || lane.Truncated || lane.Replaces || lane.Count != 1 {
				t.Errorf("%d of %d records in %+v", len(got), len(want), lane)
			}
			if got, _ := readStoredIDs(t, cfg, 11, 21); !slices.Equal(got, want[10:20]) {
				t.Errorf("a part: %q", got)
			}
			cfg.User, cfg.Password, cfg.AckTimeout = "stranger", credentials.Text("stranger"), shortTimeoutConfig("").AckTimeout
			r, err := OpenStoredReader(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close(t.Context()) }()
			if _, err := r.StoredLanes(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "STREAM.INFO.K8S") {
				t.Errorf("without rights: %v", err)
			}
		})
	}
}

// readStoredIDs reads the IDs of a stream from one sequence up to another; 0 and 0 are all.
func readStoredIDs(t *testing.T, cfg Config, from, to int64) (ids []string, lane sinks.StoredLane) {
	t.Helper()
	r, err := OpenStoredReader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(t.Context()) }()
	lanes, err := r.StoredLanes(t.Context(), "")
	if err != nil || len(lanes) != 1 {
		t.Fatalf("%v: %v", lanes, err)
	}
	span := sinks.StoredSpan{StoredLane: lanes[0], From: lanes[0].First, To: lanes[0].End}
	if to > 0 {
		span.From, span.To = from, to
	}
	if err := r.ReadStored(t.Context(), []sinks.StoredSpan{span}, func(stored sinks.StoredRecord) error {
		s, _ := format.ReadStored(stored.Value, stored.Header)
		ids = append(ids, s.ID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return ids, lanes[0]
}
