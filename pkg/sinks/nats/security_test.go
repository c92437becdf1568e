package nats

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/logs"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// openCheckedSink opens a sink and checks at the end of the test that its log contains no secret.
func openCheckedSink(t *testing.T, cfg Config, secrets ...string) *Sink {
	t.Helper()
	var lines logs.Buffer
	t.Cleanup(func() {
		for _, secret := range secrets {
			if strings.Contains(lines.String(), secret) {
				t.Errorf("a secret is in the log:\n%s", lines.String())
			}
		}
	})
	return openSink(t, cfg, lines.Logger())
}

func writeFile(t *testing.T, path string, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAWrongTokenIsAnErrorAndTheRightOneDelivers(t *testing.T) {
	t.Parallel()
	server := startServer(t, "authorization { token: right-token }\n")
	cfg := shortTimeoutConfig(server.URL())
	cfg.Token, cfg.AllowCleartextCredentials = credentials.Text("wrong-token"), true
	waitUnreachable(t, openCheckedSink(t, cfg, "wrong-token"), newPod("web", 1), "uthorization")
	cfg.Token, cfg.AckTimeout = credentials.Text("right-token"), testTimeout
	mustPublish(t, openCheckedSink(t, cfg, "right-token"), newPod("web", 1))
}

func TestARotatedNkeyIsReloaded(t *testing.T) {
	t.Parallel()
	first, second := newUserKey(t), newUserKey(t)
	server := startServer(t, fmt.Sprintf("authorization { users: [{nkey: %s}] }\n", second.public))
	cfg := shortTimeoutConfig(server.URL())
	cfg.NkeySeed = credentials.InFile(filepath.Join(t.TempDir(), "seed"))
	s := openCheckedSink(t, cfg, first.seed, second.seed)
	waitUnavailable(t, s, newPod("web", 1), "nats.nkeySeed") // the file is not there yet
	writeFile(t, cfg.NkeySeed.Path(), first.seed)
	waitUnreachable(t, s, newPod("web", 1), "uthorization")
	writeFile(t, cfg.NkeySeed.Path(), second.seed)
	waitAccepted(t, s, newPod("web", 1))
}

func TestACredentialsFileAuthenticatesAndIsReadAgain(t *testing.T) {
	t.Parallel()
	operator, account, system := newKeyPair(t, nkeys.PrefixByteOperator), newKeyPair(t, nkeys.PrefixByteAccount), newKeyPair(t, nkeys.PrefixByteAccount)
	limits := map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1}
	server := startServer(t, fmt.Sprintf("operator: %s\nresolver: MEMORY\nsystem_account: %s\nresolver_preload { %s: %s, %s: %s }\n",
		signToken(t, operator, operator, jwtClaims("operator")), system.public,
		system.public, signToken(t, operator, system, withLimits(jwtClaims("account"), limits)),
		account.public, signToken(t, operator, account, withLimits(jwtClaims("account"), limits, map[string]any{"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}))))

	cfg := shortTimeoutConfig(server.URL())
	cfg.Credentials = credentials.InFile(filepath.Join(t.TempDir(), "user.creds"))
	stranger, member := newUserKey(t), newUserKey(t)
	claim := jwtClaims("user")
	claim["subs"], claim["data"], claim["payload"] = -1, -1, -1
	writeFile(t, cfg.Credentials.Path(), credsFile(signToken(t, stranger, stranger, claim), stranger.seed)) // signed by an account that the server does not know
	s := openCheckedSink(t, cfg, stranger.seed, member.seed)
	waitUnreachable(t, s, newPod("web", 1), "uthorization")
	writeFile(t, cfg.Credentials.Path(), credsFile(signToken(t, account, member, claim), member.seed))
	waitAccepted(t, s, newPod("web", 1))

	if err := server.Restart(t.Context()); err != nil { // the client reconnects
		t.Fatal(err)
	}
	waitAccepted(t, s, newPod("web", 2))
}

func TestATLSConnectionReloadsRotatedFiles(t *testing.T) {
	t.Parallel()
	old, fresh, at, mine := certificates.New(t), certificates.New(t), t.TempDir(), t.TempDir()
	old.IssueTo(t, at)
	config := fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n",
		filepath.Join(at, "cert.pem"), filepath.Join(at, "key.pem"), filepath.Join(at, "ca.pem"))
	server := startServer(t, config)
	cfg := shortTimeoutConfig(server.URL())
	cfg.TLS = TLS{TLS: credentials.TLS{CA: filepath.Join(mine, "ca.pem"), Cert: filepath.Join(mine, "cert.pem"), Key: filepath.Join(mine, "key.pem")}}

	s := openCheckedSink(t, cfg, "PRIVATE")
	waitUnreachable(t, s, newPod("web", 1), "ca.pem") // the file does not exist yet
	fresh.IssueTo(t, mine)
	for range 2 { // neither trusts the other
		waitUnreachable(t, s, newPod("web", 1), "certificate")
	}
	old.IssueTo(t, mine)
	waitAccepted(t, s, newPod("web", 1))

	fresh.IssueTo(t, at)
	fresh.IssueTo(t, mine)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitAccepted(t, s, newPod("web", 2))
}

// identity is an nkey pair.
type identity struct {
	pair         nkeys.KeyPair
	public, seed string
}

func newKeyPair(t *testing.T, kind nkeys.PrefixByte) identity {
	t.Helper()
	p, err := nkeys.CreatePair(kind)
	if err != nil {
		t.Fatal(err)
	}
	public, err := p.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := p.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return identity{p, public, string(seed)}
}

func newUserKey(t *testing.T) identity { return newKeyPair(t, nkeys.PrefixByteUser) }

func jwtClaims(kind string) map[string]any { return map[string]any{"type": kind, "version": 2} }

func withLimits(claims map[string]any, limits ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, some := range limits {
		for name, value := range some {
			all[name] = value
		}
	}
	claims["limits"] = all
	return claims
}

// signToken returns a JWT of NATS (github.com/nats-io/jwt, version 2), signed by issuer.
func signToken(t *testing.T, issuer, subject identity, claims map[string]any) string {
	t.Helper()
	part := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	text := part(map[string]string{"typ": "JWT", "alg": "ed25519-nkey"}) + "." +
		part(map[string]any{"jti": "test", "iat": time.Now().Unix(), "iss": issuer.public, "sub": subject.public, "name": "test", "nats": claims})
	signature, err := issuer.pair.Sign([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// credsFile returns the content of a .creds file.
func credsFile(token, seed string) string {
	return "-----BEGIN NATS USER JWT-----\n" + token + "\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------\n"
}

// TestAServerThatWantsTLSFirstNamesTheKeyAndDeliversWithIt: such a server sends no INFO before the handshake, and closes a
// connection whose client waits for that.
func TestAServerThatWantsTLSFirstNamesTheKeyAndDeliversWithIt(t *testing.T) {
	t.Parallel()
	ca, at := certificates.New(t), t.TempDir()
	ca.IssueTo(t, at)
	for value, needed := range map[string]bool{"true": true, "auto": false, "false": false} {
		server := natsserver.ForTest(t, natsserver.Options{Silent: true, Config: fmt.Sprintf("tls { cert_file: %q, key_file: %q, handshake_first: %s }\n",
			filepath.Join(at, "cert.pem"), filepath.Join(at, "key.pem"), value)})
		cfg := shortTimeoutConfig(server.URL())
		cfg.TLS.CA = filepath.Join(at, "ca.pem")
		if needed {
			waitUnreachable(t, openCheckedSink(t, cfg), newPod("web", 1), "nats.tls.handshakeFirst")
		} else {
			waitAccepted(t, openCheckedSink(t, cfg), newPod("web", 1))
		}
		cfg.TLS.HandshakeFirst = true
		if value != "false" {
			waitAccepted(t, openCheckedSink(t, cfg), newPod("web", 2))
		} else { // this server speaks first
			waitUnreachable(t, openCheckedSink(t, cfg), newPod("web", 2), "does not look like a TLS handshake", "remove nats.tls.handshakeFirst")
		}
	}
}
