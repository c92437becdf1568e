package nats

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/sinktest"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// shortMemory is a stream that forgets message IDs at once, so that what it refuses it refuses for another reason.
var shortMemory = jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, Duplicates: 100 * time.Millisecond}

// forgetful makes that stream and waits until it has forgotten, each time it is asked to.
func forgetful(t *testing.T, server *natsserver.Server) (js jetstream.JetStream, forget func()) {
	t.Helper()
	js = client(t, server.URL())
	createStream(t, js, shortMemory)
	return js, func() {
		t.Helper()
		for id := 0; ; id++ { // a probe is stored again when the stream has forgotten it, and so everything before it
			probe := &nats.Msg{Subject: "k8s.probe", Header: nats.Header{nats.MsgIdHdr: {"probe"}}}
			ack, err := js.PublishMsg(t.Context(), probe)
			if err != nil {
				t.Fatal(err)
			}
			if id > 0 && !ack.Duplicate {
				return
			}
		}
	}
}

func exact(url string) Config {
	cfg := configFor(url)
	cfg.Exact = true
	return cfg
}

// stored lists the IDs of what the stream holds under k8s.c.
func stored(t *testing.T, js jetstream.JetStream) string {
	t.Helper()
	var ids []string
	for _, m := range messages(t, js, "K8S") {
		if strings.HasPrefix(m.Subject(), "k8s.c.") {
			ids = append(ids, strings.TrimSuffix(strings.TrimPrefix(m.Headers().Get(nats.MsgIdHdr), "c/uid-"), "/updated"))
		}
	}
	return strings.Join(ids, " ")
}

func TestExactKeepsTheContract(t *testing.T) {
	server := serve(t, "")
	proxy := listen(t, strings.TrimPrefix(server.URL(), "nats://"))
	h := harness(server, server.URL())
	h.New = func(t testing.TB) sinks.Sink {
		cfg := hasty("nats://" + proxy.address())
		cfg.Exact, cfg.Routed = true, routes
		return newSink(t, cfg, quiet)
	}
	toRoutes(&h)
	h.Slow = func(_ testing.TB, on bool) { proxy.delay(on) }
	h.Cut = func(t testing.TB) {
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	h.Restore = func(t testing.TB) {
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sinktest.Run(t, h)
}

func TestWithoutADuplicatesWindowNothingIsStoredTwice(t *testing.T) {
	server := serve(t, "")
	js, forget := forgetful(t, server)
	first := opened(t, exact(server.URL()), quiet)
	accepted(t, first, pod("web", 1), pod("web", 2), pod("web", 3))
	forget()
	lane, err := first.Lane(pod("web", 3))
	if err != nil {
		t.Fatal(err)
	}
	first.ledgers[first.numbers[lane]].note("k8s.c.core.pods.shop.web", 2) // as if the answer to the third had been lost
	accepted(t, first, pod("web", 3))
	restarted := opened(t, exact(server.URL()), quiet)
	accepted(t, restarted, pod("web", 1), pod("web", 2), pod("web", 3), pod("web", 4)) // as if the cursor had not been stored
	if got, want := stored(t, js), "web/1 web/2 web/3 web/4"; got != want {
		t.Errorf("the stream holds %s, want %s", got, want)
	}
}

func TestASecondWriterIsFoundOut(t *testing.T) {
	server := serve(t, "")
	js := client(t, server.URL())
	s := opened(t, exact(server.URL()), quiet)
	accepted(t, s, pod("web", 1))
	if _, err := js.Publish(t.Context(), "k8s.c.core.pods.shop.web", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		unavailable(t, s, pod("web", 2), `another writer publishes to "k8s.c.core.pods.shop.web"`, "should be number 1 and is number 2", "stop that writer")
	}
	if state := stored(t, js); state != "web/1 " {
		t.Errorf("the fight went on: %q", state)
	}
	accepted(t, opened(t, exact(server.URL()), quiet), pod("web", 2)) // a restart takes over from the other writer
	unavailable(t, s, pod("web", 3), "should be number 1 and is number 3")
}

func TestASubjectWhoseMessagesAreGoneGoesOn(t *testing.T) {
	server := serve(t, "")
	s := opened(t, exact(server.URL()), quiet)
	accepted(t, s, pod("web", 1), pod("web", 2))
	stream, err := client(t, server.URL()).Stream(t.Context(), "K8S")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 2); err != nil { // the last one
		t.Fatal(err)
	}
	accepted(t, s, pod("web", 3))
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	accepted(t, s, pod("web", 4))
}

func TestAnObjectThatComesBackGoesOnItsSubject(t *testing.T) {
	server := serve(t, "")
	s := opened(t, exact(server.URL()), quiet)
	first, second := pod("web", 1), pod("web", 9)
	first.Type, second.Type, second.UID = event.Added, event.Added, "uid-another-life"
	accepted(t, s, first)
	accepted(t, opened(t, exact(server.URL()), quiet), second) // a sink that takes it for the subject's first message
}

func TestExactNeedsTheRightToReadAndSaysSo(t *testing.T) {
	server := serve(t, `authorization { users: [{user: u, password: secret, permissions: {publish: {deny: "$JS.API.STREAM.MSG.GET.>"}}}] }`+"\n")
	s := opened(t, as(exact(server.URL()), "u"), quiet)
	unavailable(t, s, pod("web", 1), `may not publish to "$JS.API.STREAM.MSG.GET.K8S"`)
}

func TestALedgerForgetsTheLeastUsed(t *testing.T) {
	l := &ledger{limit: 10}
	for i := range 100 {
		l.note("always", uint64(i))
		l.note(fmt.Sprint(i), uint64(i))
	}
	if sequence, known := l.last("always"); !known || sequence != 99 {
		t.Errorf("always: %d, %v", sequence, known)
	}
	if sequence, known := l.last("99"); !known || sequence != 99 {
		t.Errorf("99: %d, %v", sequence, known)
	}
	if _, known := l.last("50"); known || len(l.newer)+len(l.older) > 20 {
		t.Errorf("it remembers %d subjects", len(l.newer)+len(l.older))
	}
}
