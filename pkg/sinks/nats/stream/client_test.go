package stream

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// fakeStream answers requests about a stream. The first requests for a message are answered by a server that lacks it.
type fakeStream struct {
	info    Info
	stored  []uint64
	missing int
}

func (f *fakeStream) getMessage(request GetRequest) (answer struct {
	Error   *Error   `json:"error,omitempty"`
	Message *Message `json:"message,omitempty"`
}) {
	f.missing--
	for _, sequence := range f.stored {
		if f.missing < 0 && (sequence == request.Sequence || sequence > request.Sequence && request.NextOf != "") {
			answer.Message = &Message{Subject: "k8s", Sequence: sequence}
			return answer
		}
	}
	answer.Error = &Error{ErrCode: CodeNoMessage}
	return answer
}

// connectLink returns a link that is connected.
func connectLink(t *testing.T, url string, timeout time.Duration) *connection.Link {
	t.Helper()
	link := connection.Dial(connection.Options{URL: url, InboxPrefix: "_INBOX", Timeout: timeout,
		Authenticate: func() ([]nats.Option, func() bool, error) { return nil, nil, nil }}, new(connection.Outage))
	t.Cleanup(func() { link.Close(context.WithoutCancel(t.Context())) }) //nolint:errcheck // the test is over
	for err := link.WaitConnected(t.Context()); err != nil; err = link.WaitConnected(t.Context()) {
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	return link
}

// startRedirected starts a server at which a test answers for JetStream, under subjects that begin with "fake.".
func startRedirected(t *testing.T) (*natsserver.Server, *nats.Conn) {
	t.Helper()
	const redirected = `accounts { A { users: [{user: u, password: p}], mappings: { "$JS.API.>": "fake.>" } } }` + "\nno_auth_user: u\n"
	server := natsserver.ForTest(t, natsserver.Options{Config: redirected})
	nc, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return server, nc
}

// serve answers requests about the stream until the test ends.
func (f *fakeStream) serve(t *testing.T, nc *nats.Conn) {
	t.Helper()
	answer := func(what string, of func(m *nats.Msg) any) {
		subscription, err := nc.Subscribe("fake.STREAM."+what+".K8S", func(m *nats.Msg) {
			data, err := json.Marshal(of(m))
			if err == nil {
				err = m.Respond(data)
			}
			if err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { subscription.Unsubscribe() }) //nolint:errcheck // the test is over
	}
	answer("INFO", func(*nats.Msg) any { return f.info })
	answer("MSG.GET", func(m *nats.Msg) any {
		var request GetRequest
		if err := json.Unmarshal(m.Data, &request); err != nil {
			t.Error(err)
		}
		return f.getMessage(request)
	})
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestAReplicaThatIsSilentIsNotWaitedFor: a replica that is frozen takes requests for many messages, as those that could
// answer do. The leader has all of them.
func TestAReplicaThatIsSilentIsNotWaitedFor(t *testing.T) {
	server, nc := startRedirected(t)
	fake := &fakeStream{stored: []uint64{1, 2, 3, 4, 5}}
	var silent atomic.Int64
	if _, err := nc.Subscribe("fake.DIRECT.GET.K8S", func(*nats.Msg) { silent.Add(1) }); err != nil {
		t.Fatal(err)
	}
	fake.serve(t, nc)
	c := Client{Link: connectLink(t, server.URL(), time.Minute), Name: "K8S"}
	var read []uint64
	err := c.ReadRange(t.Context(), 1, 5, true, func(m Message) error {
		read = append(read, m.Sequence)
		return nil
	})
	if err != nil || !slices.Equal(read, fake.stored) || silent.Load() != 1 {
		t.Errorf("read %v (%v) with %d requests to a silent replica", read, err, silent.Load())
	}
	found, err := c.FindNewest(t.Context(), 1, 5, true, func(m Message) bool { return m.Sequence == 1 })
	if err != nil || found.Sequence != 1 || silent.Load() != 2 {
		t.Errorf("found %d (%v) with %d requests to a silent replica", found.Sequence, err, silent.Load()-1)
	}
}

// After a partition a replaced leader answers until it learns of its successor. A change that it lacks is stored
// nevertheless, and must not be sent again.
func TestAMessageThatAReplacedLeaderLacksIsNotTakenForDeleted(t *testing.T) {
	server, nc := startRedirected(t)
	connect := func(timeout time.Duration) *connection.Link { return connectLink(t, server.URL(), timeout) }
	patient, impatient := connect(time.Minute), connect(300*time.Millisecond)
	const always = 1 << 30
	for _, test := range []struct {
		name        string
		first, last uint64 // of the stream
		stored      []uint64
		missing     int // requests that a server without the messages answers
		alone       bool
		want        uint64 // 0: none is wanted, or an error
		fails       bool
	}{
		{"stored between two requests", 1, 5, []uint64{1, 2, 3, 4, 5}, 1, false, 5, false},
		{"a replaced leader answers for a while", 1, 5, []uint64{1, 2, 3, 4, 5}, 5, false, 5, false},
		{"a replaced leader answers for a while, and others are deleted", 1, 5, []uint64{1, 5}, 5, false, 5, false},
		{"only a replaced leader answers", 1, 5, []uint64{1, 2, 3, 4, 5}, always, false, 0, true},
		{"accepted and never stored", 1, 4, []uint64{1, 2, 3, 4}, 0, false, 0, true},
		{"deleted, and a later one is stored", 1, 6, []uint64{1, 2, 3, 6}, 0, false, 3, false},
		{"deleted with all others", 6, 5, nil, 0, false, 0, false},
		{"the newest are deleted", 1, 5, []uint64{1, 2}, 0, false, 2, false},
		{"the newest are deleted on a single server", 1, 5, []uint64{1, 2}, 0, true, 2, false},
	} {
		for way, newest := range map[string]func(Client) (uint64, error){
			"the newest": func(c Client) (uint64, error) {
				m, err := c.FindNewest(t.Context(), 1, 5, false, func(Message) bool { return true })
				return m.Sequence, err
			},
			"the last of all": func(c Client) (uint64, error) {
				var last uint64
				err := c.ReadRange(t.Context(), 1, 5, false, func(m Message) error {
					last = m.Sequence
					return nil
				})
				if err != nil {
					return 0, err
				}
				return last, nil
			},
		} {
			t.Run(test.name+"/"+way, func(t *testing.T) {
				fake := &fakeStream{stored: test.stored, missing: test.missing}
				if !test.alone {
					replicas := []*jetstream.PeerInfo{{Name: "b", Active: time.Millisecond}, {Name: "c"}}
					fake.info.Cluster = &jetstream.ClusterInfo{Leader: "a", Replicas: replicas}
				}
				fake.info.State.FirstSeq, fake.info.State.LastSeq, fake.info.State.Messages = test.first, test.last, int64(len(test.stored))
				fake.serve(t, nc)
				link := impatient
				if 0 < test.missing && test.missing < always { // a server with the messages is to answer within the timeout
					link = patient
				}
				got, err := newest(Client{Link: link, Name: "K8S"})
				if got != test.want || (err != nil) != test.fails {
					t.Errorf("found %d, %v, want %d", got, err, test.want)
				}
			})
		}
	}
}
