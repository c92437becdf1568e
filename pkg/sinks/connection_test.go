package sinks_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/sinks/webhook"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

// reachers return a function that tries to reach an address with a sink of a kind, with TLS or without.
var reachers = map[string]func(t *testing.T, address string, secure bool, files credentials.TLS) (attempt func() error){
	"webhook": func(t *testing.T, address string, secure bool, files credentials.TLS) func() error {
		cfg := webhook.Config{URL: "http://" + address, Timeout: time.Second, TLS: files}
		if secure {
			cfg.URL = "https://" + address
		}
		s, err := webhook.New(cfg, format.CloudEvents)
		closeAtEnd(t, s, err)
		return func() error {
			change := &event.Change{Name: "web"}
			lane, err := s.Lane(change)
			if err == nil {
				_, err = s.Publish(t.Context(), lane, []sinks.Message{{Offset: 1, Change: change}})
			}
			return err
		}
	},
	"nats": func(t *testing.T, address string, secure bool, files credentials.TLS) func() error {
		cfg := nats.Config{URL: "nats://" + address, Stream: "s", Subject: "s.{resource}", AckTimeout: 2 * time.Second}
		cfg.TLS.TLS, cfg.TLS.HandshakeFirst = files, secure && files.CA == ""
		s, err := nats.New(cfg, format.JSON, discarded)
		closeAtEnd(t, s, err)
		return func() error {
			ctx, cancel := context.WithTimeout(t.Context(), firstResult)
			defer cancel()
			err := s.Ping(ctx)
			for ctx.Err() == nil && err != nil && strings.Contains(err.Error(), "not connected yet") {
				err = s.Ping(ctx)
			}
			return err
		}
	},
	"kafka": func(t *testing.T, address string, secure bool, files credentials.TLS) func() error {
		cfg := kafka.Config{Brokers: []string{address}, Topic: "t", TLS: auth.TLS{Enabled: secure, TLS: files}, RequestTimeout: 2 * time.Second}
		s, err := kafka.New(cfg, format.JSON, discarded)
		closeAtEnd(t, s, err)
		return func() error { return s.Ping(t.Context()) }
	},
}

// listen serves connections until the test ends.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, listener.Close()) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				serve(conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// TestEverySinkNamesWhyItCannotConnect uses servers that answer in the language of their port, or not at all.
func TestEverySinkNamesWhyItCannotConnect(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog, secure.TLS = log.New(io.Discard, "", 0), certificates.New(t).Server(t)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	away := httptest.NewServer(nil)
	away.Close()
	hangsUp := listen(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
	silent := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	alert := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1)) // what a client says first is what it cannot read
		_, _ = c.Write([]byte("\x15\x03\x01\x00\x02\x02\x46\n"))
	})
	for name, test := range map[string]struct {
		address string
		secure  bool
		says    string
		only    string // a kind
	}{
		"a name that is not there": {"nothing.invalid:9", false, `the name "nothing.invalid" is not found`, ""},
		"a closed port":            {away.Listener.Addr().String(), false, "connection refused", ""},
		"a port that hangs up":     {hangsUp, true, "closes the connection before its first answer, as a port does that has no TLS", ""},
		"a port without TLS":       {plain.Listener.Addr().String(), true, "TLS is on on one side only, the server answers without it", "webhook"},
		"a port with TLS":          {secure.Listener.Addr().String(), false, "TLS", "webhook"},
		"a broker with TLS":        {secure.Listener.Addr().String(), false, "as a port does that expects TLS", "kafka"},
		"a port of Java with TLS":  {alert, false, "TLS", "webhook"},
		"silence":                  {silent, false, "answered", "nats"},
		"silence with TLS":         {silent, true, "answer", "kafka"},
	} {
		for kind, reach := range reachers {
			if test.only != "" && test.only != kind {
				continue
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				err := reach(t, test.address, test.secure, credentials.TLS{})()
				var unavailable *sinks.UnavailableError
				if !errors.As(err, &unavailable) {
					t.Fatalf("%v; want an UnavailableError", err)
				}
				code := condition.SinkUnreachable
				if strings.HasPrefix(name, "silence") {
					code = condition.SinkTimeout
				}
				if p := unavailable.Problem(); p.Code != code || !strings.Contains(p.Cause, test.says) || !strings.Contains(p.Remedy, kind) {
					t.Errorf("%+v; want %q", p, test.says)
				}
			})
		}
	}
}

// elsewhere is a listener that says that it has another address.
type elsewhere struct {
	net.Listener
	address net.Addr
}

func (e elsewhere) Addr() net.Addr { return e.address }

// TestABrokerThatIsAdvertisedWhereNothingListensIsNamed has a cluster that answers at its address and names another one.
func TestABrokerThatIsAdvertisedWhereNothingListensIsNamed(t *testing.T) {
	away := httptest.NewServer(nil)
	away.Close()
	var bootstrap string
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.ListenFn(func(network, address string) (net.Listener, error) {
		listener, err := net.Listen(network, address)
		if err == nil {
			bootstrap = listener.Addr().String()
		}
		return elsewhere{listener, away.Listener.Addr()}, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s, err := kafka.New(kafka.Config{Brokers: []string{bootstrap}, Topic: "t", RequestTimeout: time.Second}, format.JSON, discarded)
	closeAtEnd(t, s, err)
	check(t, s.Ping(t.Context()))
	want := bootstrap + " answers and advertises broker 0 at " + away.Listener.Addr().String() + ", which cannot be reached: connection refused"
	if p := condition.ProblemOf(s.CheckServers(t.Context()), ""); p.Code != condition.SinkUnreachable || !strings.HasPrefix(p.Cause, want) ||
		!strings.Contains(p.Remedy, "advertised.listeners") {
		t.Errorf("%+v; want %q", p, want)
	}
	change := &event.Change{Name: "web"}
	lane, err := s.Lane(change)
	check(t, err)
	if _, err = s.Publish(t.Context(), lane, []sinks.Message{{Offset: 1, Change: change}}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}
