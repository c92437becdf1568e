package sinks_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// firstResult bounds the wait for the result of the first attempt.
const firstResult = 2 * time.Minute

var discarded = slog.New(slog.DiscardHandler)

// side is one end of a handshake: its certificate, the authorities that it trusts, and the newest version of TLS, 0 for any.
type side struct {
	cert, key, trusts []byte
	newest            uint16
}

// write writes the files of a side, and returns the directory. What is missing is not written.
func (s side) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string][]byte{"cert.pem": s.cert, "key.pem": s.key, "ca.pem": s.trusts} {
		if content == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// paths returns the paths of the client's files, "" for those that it does not have.
func (s side) paths(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := s.write(t)
	if s.cert != nil {
		cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	}
	return filepath.Join(dir, "ca.pem"), cert, key
}

// serverConfig admits only clients with a certificate if the server trusts authorities.
func (s side) serverConfig(t *testing.T) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(s.cert, s.key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: s.newest, Certificates: []tls.Certificate{pair}}
	if s.trusts != nil {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		config.ClientCAs.AppendCertsFromPEM(s.trusts)
	}
	return config
}

// destinations start a server with one side of a handshake, and return its address.
var destinations = map[string]func(t *testing.T, server side) (address string){
	"webhook": func(t *testing.T, server side) string {
		receiver := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		receiver.Config.ErrorLog = log.New(io.Discard, "", 0)
		receiver.TLS = server.serverConfig(t)
		receiver.StartTLS()
		t.Cleanup(receiver.Close)
		return receiver.Listener.Addr().String()
	},
	"nats": func(t *testing.T, server side) string {
		dir := server.write(t)
		config := fmt.Sprintf("cert_file: %q, key_file: %q", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
		if server.trusts != nil {
			config += fmt.Sprintf(", ca_file: %q, verify: true", filepath.Join(dir, "ca.pem"))
		}
		s := natsserver.ForTest(t, natsserver.Options{Config: "tls { " + config + " }\n"})
		return strings.TrimPrefix(s.URL(), "nats://")
	},
	"kafka": func(t *testing.T, server side) string {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.TLS(server.serverConfig(t)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		return cluster.ListenAddrs()[0]
	},
}

func closeAtEnd(t *testing.T, s sinks.Sink, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, s.Close(context.Background())) })
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestACertificateThatIsNotAcceptedIsNamedByEveryDestination does real handshakes, in both versions of the protocol where
// a server has a choice: with 1.3 the refusal of a client's certificate comes after the handshake of the client. Each
// attempt has the same result.
func TestACertificateThatIsNotAcceptedIsNamedByEveryDestination(t *testing.T) {
	authority, stranger := certificates.New(t), certificates.New(t)
	now := time.Now()
	issue := func(by *certificates.Authority, from, to time.Time) side {
		cert, key := by.IssueWithin(t, "test", from, to)
		return side{cert: cert, key: key}
	}
	trusting := func(s side, by *certificates.Authority) side {
		s.trusts = by.PEM
		return s
	}
	hour := time.Hour
	valid := issue(authority, now.Add(-hour), now.Add(hour))
	otherName := side{}
	otherName.cert, otherName.key = authority.IssueForHost(t, "other.example")
	nobody := trusting(side{}, authority)
	for name, test := range map[string]struct {
		server, client side
		cause, remedy  string
	}{
		"expired":           {issue(authority, now.Add(-2*hour), now.Add(-hour)), nobody, "has expired: it was valid until 20", "renew"},
		"not yet valid":     {issue(authority, now.Add(hour), now.Add(2*hour)), nobody, "is not yet valid: it is from 20", "clocks"},
		"unknown authority": {valid, trusting(side{}, stranger), "is not trusted", ".tls"},
		"another name":      {otherName, nobody, "has another name", "address"},
		"no client":         {trusting(valid, authority), nobody, "the server refuses the client certificate", ".tls"},
		"client of a stranger": {trusting(valid, authority), trusting(issue(stranger, now.Add(-hour), now.Add(hour)), authority),
			"the server refuses the client certificate", ".tls"},
		"expired client": {trusting(valid, authority), trusting(issue(authority, now.Add(-2*hour), now.Add(-hour)), authority),
			"the server refuses the client certificate", ".tls"},
	} {
		for kind, start := range destinations {
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				if version == tls.VersionTLS12 && (kind == "nats" || name == "no client") { // handshake_failure, which has other reasons, too
					continue
				}
				t.Run(kind+"/"+name+"/"+tls.VersionName(version), func(t *testing.T) {
					t.Parallel()
					server, files := test.server, credentials.TLS{}
					server.newest = version
					files.CA, files.Cert, files.Key = test.client.paths(t)
					attempt := reachers[kind](t, start(t, server), true, files)
					for range 3 {
						err := attempt()
						var away *sinks.UnavailableError
						if !errors.As(err, &away) {
							t.Fatalf("%v; want an UnavailableError", err)
						}
						p := away.Problem()
						if p.Code != condition.SinkCertificate || !strings.Contains(p.Cause, test.cause) || !strings.Contains(p.Remedy, test.remedy) {
							t.Errorf("%+v; want SinkCertificate, %q and %q", p, test.cause, test.remedy)
						}
						if strings.HasPrefix(test.remedy, ".") && !strings.Contains(p.Remedy, kind+test.remedy) {
							t.Errorf("the remedy %q names another sink", p.Remedy)
						}
					}
				})
			}
		}
	}
}
