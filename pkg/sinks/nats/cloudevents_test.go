package nats

import (
	"maps"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func openSinkWithFormat(t testing.TB, url string, f format.Format) *Sink {
	t.Helper()
	cfg := testConfig(url)
	cfg.Headers = true
	s, err := New(cfg, f, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFormatsWithHeadersKeepTheContract: the others are another payload only.
func TestFormatsWithHeadersKeepTheContract(t *testing.T) {
	for _, f := range []format.Format{format.CloudEvents, format.Upsert} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			server := startServer(t, "")
			h := newHarness(server, server.URL())
			h.New = func(t testing.TB) sinks.Sink { return openSinkWithFormat(t, server.URL(), f) }
			h.Value = func(c *event.Change) []byte { return f.AppendValue(nil, c) }
			sinktest.Run(t, h)
		})
	}
}

func TestACloudEventHasTheHeadersOfItsMode(t *testing.T) {
	first, second := newPod("a", 7), newPod("a", 8)
	first.Coalesced, first.Cluster = true, `50% "north" €`
	second.Cluster = first.Cluster
	always := map[string]string{nats.MsgIdHdr: first.ID(), nats.ExpectedStreamHdr: "K8S"}
	for f, want := range map[format.Format]map[string]string{
		format.CloudEvents: {
			headerContentType: "application/json", "ce-datacontenttype": "application/json", "ce-specversion": "1.0",
			"ce-id":     "50%25%20%22north%22%20%E2%82%AC/" + first.UID + "/" + first.ResourceVersion + "/updated",
			"ce-source": "/clusters/50%2525%2520%2522north%2522%2520%25E2%2582%25AC/core/v1/pods", "ce-type": "io.kubecdc.resource.updated",
			"ce-subject": first.Namespace + "/" + first.Name, "ce-time": first.ObservedAt.Format(time.RFC3339Nano),
			"ce-cluster": "50%25%20%22north%22%20%E2%82%AC", "ce-group": "core", "ce-resource": "pods", "ce-kind": "Pod",
			"ce-uid": first.UID, "ce-resourceversion": first.ResourceVersion, "ce-sequence": "0000000000000000000" + first.ResourceVersion,
			"ce-partitionkey": "50%25%20%22north%22%20%E2%82%AC/core/pods/shop/" + first.Name, "ce-coalesced": "true",
		},
		format.CloudEventsStructured: {headerContentType: "application/cloudevents+json"},
	} {
		t.Run(f.String(), func(t *testing.T) {
			server := startServer(t, "")
			createStreamWithoutBatches(t, server)
			s := openSinkWithFormat(t, server.URL(), f)
			closeAtEnd(t, s)
			if n, err := publishChanges(t, s, first, second); n != 2 || err != nil {
				t.Fatalf("published %d: %v", n, err)
			}
			got := readMessages(t, connectClient(t, server.URL()), "K8S")
			want := maps.Clone(want)
			maps.Copy(want, always)
			flat := map[string]string{}
			for name, values := range got[0].Headers() {
				flat[name] = values[0]
			}
			if !maps.Equal(flat, want) {
				t.Errorf("headers %v\nwant %v", flat, want)
			}
			if stale := got[1].Headers()["ce-coalesced"]; stale != nil {
				t.Errorf("the second message has the first one's ce-coalesced: %q", stale)
			}
		})
	}
}

func FuzzHeaderValuesArePlainAndComeBack(f *testing.F) {
	f.Add("a b")
	f.Add("\x00\"%€\x7f\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		encoded := sinks.AppendAttribute(nil, []byte(text))
		if slices.ContainsFunc(encoded, func(b byte) bool { return b <= ' ' || b > '~' || b == '"' }) {
			t.Errorf("%q became %q, which is no plain header", text, encoded)
		}
		if back, err := url.PathUnescape(string(encoded)); back != text || err != nil {
			t.Errorf("%q came back as %q (%v)", text, back, err)
		}
	})
}

func TestAnUpsertWithoutAPayloadIsADeleteToABucket(t *testing.T) {
	server := startServer(t, "")
	s := openSinkWithFormat(t, server.URL(), format.Upsert)
	closeAtEnd(t, s)
	gone := newPod("a", 8)
	gone.Type, gone.After = event.Deleted, nil
	again := newPod("a", 9)
	if n, err := publishChanges(t, s, newPod("a", 7), gone, again); n != 3 || err != nil {
		t.Fatalf("published %d: %v", n, err)
	}
	for i, m := range readMessages(t, connectClient(t, server.URL()), "K8S") {
		h := m.Headers()
		deleted := i == 1
		if (h.Get(headerOperation) == "DEL") != deleted || (len(m.Data()) == 0) != deleted || (h.Get(headerChange) != "") != deleted {
			t.Errorf("message %d: headers %v, payload %q", i, h, m.Data())
		}
		if deleted && h.Get(headerChange) != string(format.AppendFacts(nil, gone)) {
			t.Errorf("the header of the delete is %s", h.Get(headerChange))
		}
	}
}
