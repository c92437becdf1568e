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

	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

// secretive makes a sink whose log is kept, and sees at the end that no secret is in it.
func secretive(t *testing.T, cfg Config, secrets ...string) *Sink {
	t.Helper()
	var lines transcript
	t.Cleanup(func() {
		for _, secret := range secrets {
			if strings.Contains(lines.String(), secret) {
				t.Errorf("a secret is in the log:\n%s", lines.String())
			}
		}
	})
	return opened(t, cfg, lines.logger())
}

func write(t *testing.T, path string, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAWrongTokenIsAFaultAndTheRightOneDelivers(t *testing.T) {
	server := serve(t, "authorization { token: right-token }\n")
	cfg := hasty(server.URL())
	cfg.Token, cfg.AllowCleartextCredentials = "wrong-token", true
	unreachable(t, secretive(t, cfg, "wrong-token"), pod("web", 1), "uthorization")
	cfg.Token, cfg.AckTimeout = "right-token", patience
	accepted(t, secretive(t, cfg, "right-token"), pod("web", 1))
}

func TestARotatedNkeyIsTakenUp(t *testing.T) {
	first, second := user(t), user(t)
	server := serve(t, fmt.Sprintf("authorization { users: [{nkey: %s}] }\n", second.public))
	cfg := hasty(server.URL())
	cfg.NkeySeed = filepath.Join(t.TempDir(), "seed")
	write(t, cfg.NkeySeed, first.seed)
	s := secretive(t, cfg, first.seed, second.seed)
	unreachable(t, s, pod("web", 1), "uthorization")
	write(t, cfg.NkeySeed, second.seed)
	finally(t, s, pod("web", 1))
}

func TestACredentialsFileAuthenticatesAndIsReadAgain(t *testing.T) {
	operator, account, system := pair(t, nkeys.PrefixByteOperator), pair(t, nkeys.PrefixByteAccount), pair(t, nkeys.PrefixByteAccount)
	limits := map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1}
	server := serve(t, fmt.Sprintf("operator: %s\nresolver: MEMORY\nsystem_account: %s\nresolver_preload { %s: %s, %s: %s }\n",
		token(t, operator, operator, claims("operator")), system.public,
		system.public, token(t, operator, system, withLimits(claims("account"), limits)),
		account.public, token(t, operator, account, withLimits(claims("account"), limits, map[string]any{"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}))))

	cfg := hasty(server.URL())
	cfg.Credentials = filepath.Join(t.TempDir(), "user.creds")
	stranger, member := user(t), user(t)
	claim := claims("user")
	claim["subs"], claim["data"], claim["payload"] = -1, -1, -1
	write(t, cfg.Credentials, credentials(token(t, stranger, stranger, claim), stranger.seed)) // by no account that the server knows
	s := secretive(t, cfg, stranger.seed, member.seed)
	unreachable(t, s, pod("web", 1), "uthorization")
	write(t, cfg.Credentials, credentials(token(t, account, member, claim), member.seed))
	finally(t, s, pod("web", 1))

	if err := server.Restart(t.Context()); err != nil { // the connection is made anew
		t.Fatal(err)
	}
	finally(t, s, pod("web", 2))
}

func TestATLSConnectionTakesUpRotatedFiles(t *testing.T) {
	old, fresh, at, mine := certificates.New(t), certificates.New(t), t.TempDir(), t.TempDir()
	old.IssueTo(t, at)
	config := fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n",
		filepath.Join(at, "cert.pem"), filepath.Join(at, "key.pem"), filepath.Join(at, "ca.pem"))
	server := serve(t, config)
	cfg := hasty(server.URL())
	cfg.TLS = TLS{CA: filepath.Join(mine, "ca.pem"), Cert: filepath.Join(mine, "cert.pem"), Key: filepath.Join(mine, "key.pem")}

	s := secretive(t, cfg, "PRIVATE")
	unreachable(t, s, pod("web", 1), "ca.pem") // not there yet
	fresh.IssueTo(t, mine)
	for range 2 { // neither trusts the other
		unreachable(t, s, pod("web", 1), "certificate")
	}
	old.IssueTo(t, mine)
	finally(t, s, pod("web", 1))

	fresh.IssueTo(t, at)
	fresh.IssueTo(t, mine)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	finally(t, s, pod("web", 2))
}

func TestAClientWithoutACertificateIsRefusedWhereOneIsNeeded(t *testing.T) {
	ca, at := certificates.New(t), t.TempDir()
	ca.IssueTo(t, at)
	server := serve(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n",
		filepath.Join(at, "cert.pem"), filepath.Join(at, "key.pem"), filepath.Join(at, "ca.pem")))
	cfg := hasty(server.URL())
	cfg.TLS.CA = filepath.Join(at, "ca.pem")
	unreachable(t, opened(t, cfg, quiet), pod("web", 1))
}

// identity is an nkey pair.
type identity struct {
	pair         nkeys.KeyPair
	public, seed string
}

func pair(t *testing.T, kind nkeys.PrefixByte) identity {
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

func user(t *testing.T) identity { return pair(t, nkeys.PrefixByteUser) }

func claims(kind string) map[string]any { return map[string]any{"type": kind, "version": 2} }

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

// token is a JWT as NATS has it (github.com/nats-io/jwt, version 2), signed by issuer.
func token(t *testing.T, issuer, subject identity, claims map[string]any) string {
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

// credentials is a .creds file.
func credentials(token, seed string) string {
	return "-----BEGIN NATS USER JWT-----\n" + token + "\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------\n"
}
