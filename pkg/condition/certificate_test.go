package condition_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

// connect does one handshake over TCP, and returns the error of the client: of the handshake, or of the first read after it.
func connect(t *testing.T, server func(net.Conn), client *tls.Config) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // the test is over
		server(conn)
	}()
	defer func() {
		check(t, listener.Close())
		<-served
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the test is over
	check(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	secure := tls.Client(conn, client)
	if err := secure.Handshake(); err != nil {
		return err
	}
	_, err = secure.Read(make([]byte, 1))
	return err
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// certificateProblem returns the problem of a connection if it is about a certificate.
func certificateProblem(err error) condition.Problem {
	p := condition.Peer{Settings: "kafka.tls", Secure: true}.Problem(err)
	if p.Code != condition.SinkCertificate {
		return condition.Problem{}
	}
	return p
}

// TestAnErrorOfAHandshakeIsAboutACertificateOnlyIfItIs uses both versions of the protocol: with 1.3 the refusal of
// a client's certificate comes after the handshake of the client.
func TestAnErrorOfAHandshakeIsAboutACertificateOnlyIfItIs(t *testing.T) {
	authority, stranger := certificates.New(t), certificates.New(t)
	pool := func(a *certificates.Authority) *x509.CertPool {
		p := x509.NewCertPool()
		p.AppendCertsFromPEM(a.PEM)
		return p
	}
	pair := func(cert, key []byte) tls.Certificate {
		p, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	now := time.Now()
	within := func(from, to time.Duration) tls.Certificate {
		return pair(authority.IssueWithin(t, "test", now.Add(from), now.Add(to)))
	}
	serve := func(config *tls.Config) func(net.Conn) {
		return func(conn net.Conn) {
			if secure := tls.Server(conn, config); secure.Handshake() == nil {
				_ = secure.Close() // the client reads the end
			}
		}
	}
	presenting := func(c tls.Certificate) func(net.Conn) { return serve(&tls.Config{Certificates: []tls.Certificate{c}}) }
	asking := serve(authority.Server(t))
	old := serve(&tls.Config{Certificates: []tls.Certificate{within(-time.Hour, time.Hour)}, MaxVersion: tls.VersionTLS11})
	for name, test := range map[string]struct {
		server func(net.Conn)
		with   []tls.Certificate // of the client
		trusts *certificates.Authority
		cause  string // "": not about a certificate
	}{
		"accepted":             {asking, []tls.Certificate{within(-time.Hour, time.Hour)}, authority, ""},
		"expired":              {presenting(within(-2*time.Hour, -time.Hour)), nil, authority, "the server's certificate has expired: it was valid until 2"},
		"not yet valid":        {presenting(within(time.Hour, 2*time.Hour)), nil, authority, "the server's certificate is not yet valid: it is from 2"},
		"of a stranger":        {presenting(within(-time.Hour, time.Hour)), nil, stranger, "the server's certificate is not trusted: "},
		"another name":         {presenting(pair(authority.IssueForHost(t, "other.example"))), nil, authority, "the server's certificate has another name: "},
		"no client":            {asking, nil, authority, "the server refuses the client certificate: tls: "},
		"an expired client":    {asking, []tls.Certificate{within(-2*time.Hour, -time.Hour)}, authority, "the server refuses the client certificate: tls: "},
		"client of a stranger": {asking, []tls.Certificate{pair(stranger.Issue(t))}, authority, "the server refuses the client certificate: tls: "},
		"an old protocol":      {old, nil, authority, ""},
		"no TLS":               {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }, nil, authority, ""},
		"closed":               {func(net.Conn) {}, nil, authority, ""},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(name+" "+tls.VersionName(version), func(t *testing.T) {
				err := connect(t, test.server, &tls.Config{
					ServerName: "127.0.0.1", RootCAs: pool(test.trusts), MinVersion: version, MaxVersion: version,
					GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
						return &append(test.with, tls.Certificate{})[0], nil
					},
				})
				if err == nil {
					t.Fatal("the connection has no end")
				}
				p := certificateProblem(err)
				want := test.cause
				if name == "no client" && version == tls.VersionTLS12 { // handshake_failure, which has other reasons, too
					want = ""
				}
				if !strings.HasPrefix(p.Cause, want) || want == "" && p.Cause != "" || (p.Cause == "") != (p.Remedy == "") {
					t.Errorf("%v: %+v; want %q", err, p, want)
				}
				if wrapped := certificateProblem(errors.Join(errors.New("dial"), err)); wrapped.Cause != p.Cause {
					t.Errorf("in another error: %+v", wrapped)
				}
			})
		}
	}
}
