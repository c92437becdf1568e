package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

const (
	requestSubject = "kubecdc.requests"
	requestTimeout = 20 * time.Second // far above what an answer takes
)

// runResponder runs a responder that answers with what it was asked, until the returned function is called. Its reports
// are in the channel, each once.
func runResponder(t *testing.T, cfg Config, respond func(context.Context, []byte) []byte) (reports chan error, stop func()) {
	t.Helper()
	reports = make(chan error, 100)
	var last string
	r := NewResponder(ResponderOptions{
		Config: cfg, Subject: requestSubject, Respond: respond,
		Report: func(err error) {
			if text := fmt.Sprint(err); text != last {
				last = text
				reports <- err
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return reports, stop
}

// awaitRequests waits until requests arrive.
func awaitRequests(t *testing.T, reports chan error) {
	t.Helper()
	_ = awaitReport(t, reports, "")
}

// awaitReport waits until the reason why no requests arrive contains some text, and returns it; "" is no reason.
func awaitReport(t *testing.T, reports chan error, text string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for {
		select {
		case err := <-reports:
			if text == "" && err == nil || text != "" && err != nil && strings.Contains(err.Error(), text) {
				return err
			}
		case <-ctx.Done():
			t.Fatalf("nothing reports %q", text)
		}
	}
}

func echo(_ context.Context, request []byte) []byte { return append([]byte("answer to "), request...) }

// mustAsk sends a request and checks its answer.
func mustAsk(t *testing.T, nc *nats.Conn, request string) {
	t.Helper()
	answer, err := nc.Request(requestSubject, []byte(request), testTimeout)
	if err != nil {
		t.Fatalf("%s: %v", request, err)
	}
	if want := echo(t.Context(), []byte(request)); !bytes.Equal(answer.Data, want) {
		t.Errorf("%s is answered by %s", request, answer.Data)
	}
}

func TestRequestsAreAnsweredUntilTheEndAndOverARestartOfTheServer(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	reports, stop := runResponder(t, shortTimeoutConfig(server.URL()), echo)
	awaitRequests(t, reports)
	nc := connectClient(t, server.URL()).Conn()
	mustAsk(t, nc, "first")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = awaitReport(t, reports, "not connected to NATS")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitRequests(t, reports)
	mustAsk(t, connectClient(t, server.URL()).Conn(), "second")
	stop()
	if _, err := connectClient(t, server.URL()).Conn().Request(requestSubject, nil, testTimeout); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("after the end: %v", err)
	}
}

func TestASlowAnswerDelaysNoOtherAndIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	begun, goOn := make(chan struct{}), make(chan struct{})
	reports, stop := runResponder(t, shortTimeoutConfig(server.URL()), func(ctx context.Context, request []byte) []byte {
		if string(request) == "slow" {
			close(begun)
			<-goOn
		}
		return echo(ctx, request)
	})
	awaitRequests(t, reports)
	nc := connectClient(t, server.URL()).Conn()
	slow := make(chan error, 1)
	go func() {
		_, err := nc.Request(requestSubject, []byte("slow"), testTimeout)
		slow <- err
	}()
	<-begun
	mustAsk(t, nc, "fast")
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	close(goOn)
	<-ended
	if err := <-slow; err != nil {
		t.Errorf("the slow request: %v", err)
	}
}

// TestEveryRequestAtTheEndIsAnsweredOrHasNoResponders: none is lost between an exporter and the next one.
func TestEveryRequestAtTheEndIsAnsweredOrHasNoResponders(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	nc := connectClient(t, server.URL()).Conn()
	for range 5 {
		reports, stop := runResponder(t, shortTimeoutConfig(server.URL()), echo)
		awaitRequests(t, reports)
		var asking sync.WaitGroup
		for range 2 * maxRequests {
			mustAsk(t, nc, "first")
			asking.Go(func() {
				var err error
				for err == nil {
					_, err = nc.Request(requestSubject, []byte("again"), requestTimeout)
				}
				if !errors.Is(err, nats.ErrNoResponders) {
					t.Error(err)
				}
			})
		}
		stop()
		asking.Wait()
	}
}

// TestRequestsBehindOthersThatWaitForTheEndAreAnswered: more than are answered at once.
func TestRequestsBehindOthersThatWaitForTheEndAreAnswered(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	begun := make(chan struct{}, 2*maxRequests)
	reports, stop := runResponder(t, shortTimeoutConfig(server.URL()), func(ctx context.Context, request []byte) []byte {
		begun <- struct{}{}
		select {
		case <-ctx.Done():
		case <-time.After(testTimeout):
		}
		return echo(ctx, request)
	})
	awaitRequests(t, reports)
	nc := connectClient(t, server.URL()).Conn()
	inbox := nats.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	for range maxRequests + 1 {
		err = errors.Join(err, nc.PublishRequest(requestSubject, inbox, nil))
	}
	if err = errors.Join(err, nc.FlushTimeout(testTimeout)); err != nil {
		t.Fatal(err)
	}
	for range maxRequests {
		<-begun
	}
	stop()
	for i := range maxRequests + 1 {
		if _, err := answers.NextMsg(testTimeout); err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
}

func TestARefusedSubscriptionNamesItsSubject(t *testing.T) {
	t.Parallel()
	server := startServer(t, "authorization { users: [{user: u, password: a-password, permissions: {subscribe: {deny: "+requestSubject+"}}}] }\n")
	cfg := shortTimeoutConfig(server.URL())
	cfg.User, cfg.Password, cfg.AllowCleartextCredentials = "u", "a-password", true
	reports, _ := runResponder(t, cfg, echo)
	p := condition.ProblemOf(awaitReport(t, reports, "may not subscribe"), "")
	if p.Code != condition.SinkUnauthorized || !strings.Contains(p.Cause, `"`+requestSubject+`"`) || !strings.HasPrefix(p.Remedy, "allow subscribing") {
		t.Errorf("the problem is %+v", p)
	}
}

func TestASubjectOfRequestsIsNoneOfChanges(t *testing.T) {
	cfg := testConfig("nats://localhost")
	cfg.Routed = []string{"k8s.audit.{resource}"}
	for subject, want := range map[string]string{
		requestSubject: "", "": "is empty", "kubecdc.*": "wildcard", "kubecdc..signals": "empty token", "k8s.a.b.c.d.e": "is a subject of changes",
		"k8s.audit.x": "is a subject of changes", "k8s.a.b": "",
	} {
		if err := cfg.ValidateRequestSubject(subject); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", subject, err)
		}
	}
}
