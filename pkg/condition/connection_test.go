package condition_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// serveRaw accepts connections and passes each to a function, until the test ends.
func serveRaw(t *testing.T, serve func(net.Conn)) (address string) {
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
			go serve(conn)
		}
	}()
	return listener.Addr().String()
}

// open connects with TLS or without, and waits for the first byte.
func open(address string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the test is over
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until)
	if config != nil {
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return &condition.OpeningError{Err: err}
		}
		conn = secure
	}
	if _, err := io.WriteString(conn, "hello\r\n"); err != nil {
		return &condition.OpeningError{Err: err}
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return &condition.OpeningError{Err: err}
	}
	return nil
}

func TestWhyAConnectionFailsIsNamedWithARemedy(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	silent := serveRaw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c); _ = c.Close() })
	closing := serveRaw(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); _ = c.Close() })
	greeting := serveRaw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "INFO {}\r\n")
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	})
	old := serveRaw(t, func(c net.Conn) {
		_ = tls.Server(c, &tls.Config{MaxVersion: tls.VersionTLS11}).Handshake()
		_ = c.Close()
	})
	with := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // no connection is established
	for name, test := range map[string]struct {
		address       string
		tls           *tls.Config
		cause, remedy string
	}{
		"a wrong name":                {"nothing.invalid:1", nil, `the name "nothing.invalid" is not found: `, "correct the name in kafka.brokers"},
		"a closed port":               {closed.Listener.Addr().String(), nil, "connection refused at 127.0.0.1:", "start it, or correct the port in kafka.brokers"},
		"no way":                      {"192.0.2.1:9", nil, "", "kafka.brokers"},
		"silence":                     {silent, nil, "connections are accepted and not answered", "if its port expects TLS, the other"},
		"silence with TLS":            {silent, with, "connections are accepted and not answered", "if its port has no TLS, the other"},
		"TLS to a port without":       {greeting, with, "TLS is on on one side only, the server answers without it", "the other; or correct the port"},
		"TLS to a port that hangs up": {closing, with, "it closes the connection before its first answer, as a port does that has no TLS", "the other"},
		"only a version of TLS that is old": {old, with, "the server ends the TLS handshake: tls: protocol version not supported",
			"compare the versions of TLS"},
		"no TLS to a port that hangs up": {closing, nil, "it closes the connection before its first answer, as a port does that expects TLS", "the other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := open(test.address, test.tls)
			if err == nil {
				t.Fatal("it is connected")
			}
			for _, apiServer := range []bool{false, true} {
				p := condition.Peer{Address: "kafka.brokers", Settings: "kafka.tls", Secure: test.tls != nil, Other: "the other", APIServer: apiServer}.Problem(err)
				code := condition.SinkUnreachable
				switch {
				case apiServer:
					code = condition.APIServerUnreachable
				case strings.HasPrefix(name, "silence"):
					code = condition.SinkTimeout
				}
				if p.Code != code || !strings.HasPrefix(p.Cause, test.cause) || !strings.Contains(p.Remedy, test.remedy) {
					t.Errorf("%v: %+v; want %s, %q, %q", err, p, code, test.cause, test.remedy)
				}
			}
		})
	}
	p := condition.Peer{}.Problem(&net.OpError{Op: "proxyconnect", Err: io.EOF})
	if p.Cause != "the proxy on the way: it has closed the connection" {
		t.Errorf("a proxy: %+v", p)
	}
}
