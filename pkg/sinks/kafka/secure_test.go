package kafka

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
)

// Passwords of the tests.
const rightPassword, wrongPassword = "open-sesame", "hunter2"

// testCorrectedCredentials opens a sink with credentials that Kafka rejects: the error names the setting and contains no
// credential. Once they are corrected, the sink delivers.
func testCorrectedCredentials(t *testing.T, cfg Config, names string, correct func()) {
	t.Helper()
	s, log := openSinkWithLog(t, cfg)
	for range 3 {
		_, err := lookUp(t, s, pod("a", 1))
		var unavailable *sinks.UnavailableError
		if !errors.As(err, &unavailable) || !strings.Contains(err.Error(), names) || strings.Contains(err.Error(), wrongPassword) {
			t.Fatalf("credentials that are refused: %v; want an UnavailableError that names %s", err, names)
		}
	}
	correct()
	waitForTopic(t, s)
	publishUntilAccepted(t, s, laneOf(t, s, pod("a", 1)), pods("a", 1, 5))
	for _, secret := range []string{rightPassword, wrongPassword, "eyJ"} { // and how tokens begin
		if strings.Contains(log.String(), secret) {
			t.Errorf("a credential is in the log:\n%s", log)
		}
	}
}

// unsignedToken returns a token for the test mode of the broker (RFC 7519, 6).
func unsignedToken(subject string, lives time.Duration) string {
	part := func(v any) string {
		b, _ := json.Marshal(v) // plain data
		return base64.RawURLEncoding.EncodeToString(b)
	}
	now := time.Now()
	return part(map[string]string{"alg": "none"}) + "." +
		part(map[string]any{"sub": subject, "iat": now.Unix() - 1, "exp": now.Add(lives).Unix()}) + "."
}

// startTokenEndpoint starts a token endpoint that knows one client.
func startTokenEndpoint(t *testing.T, lives time.Duration) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json") // RFC 6749, 5.1
		id, secret, _ := r.BasicAuth()
		if id != "exporter" || secret != rightPassword || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "kafka" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"invalid_client"}`)) // a failure shows at the client
			return
		}
		asked.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": unsignedToken("exporter", lives), "expires_in": lives.Seconds()})
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

// TestEveryMechanismOnApacheKafka uses TLS and each mechanism with a real broker: right credentials work, wrong ones are
// reported without being shown, and the sink recovers when they are corrected.
func TestEveryMechanismOnApacheKafka(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := certificates.New(t)
	writeFile(t, dir, "ca.pem", ca.PEM)
	cert, key := ca.Issue(t)
	const login = "org.apache.kafka.common.security."
	b := startKafkaIn(t, t.TempDir(), 1, broker.Options{
		Properties: map[string]string{"listener.name.secure.connections.max.reauth.ms": "3000"},
		Secure: &broker.Secure{Certificate: string(cert), Key: string(key), Mechanisms: map[string]string{
			"PLAIN":         login + `plain.PlainLoginModule required user_exporter="` + rightPassword + `";`,
			"SCRAM-SHA-256": login + "scram.ScramLoginModule required;",
			"SCRAM-SHA-512": login + "scram.ScramLoginModule required;",
			"OAUTHBEARER":   login + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`,
		}}})[0]
	addUser(t, b.Brokers(), "exporter", rightPassword)
	endpoint, _ := startTokenEndpoint(t, time.Hour)

	password := filepath.Join(dir, "password")
	for name, login := range map[string]auth.SASL{
		"plain":         {Mechanism: "plain", Username: "exporter", Password: credentials.InFile(password)},
		"scram-sha-256": {Mechanism: "scram-sha-256", Username: "exporter", Password: credentials.InFile(password)},
		"scram-sha-512": {Mechanism: "scram-sha-512", Username: "exporter", Password: credentials.InFile(password)},
		"oauthbearer":   {Mechanism: "oauthbearer", OAuth: auth.OAuth{TokenURL: endpoint, ClientID: "exporter", ClientSecret: credentials.InFile(password), Scope: "kafka"}},
	} {
		t.Run(name, func(t *testing.T) {
			writeFile(t, dir, "password", []byte(wrongPassword+"\n"))
			testCorrectedCredentials(t, Config{Brokers: []string{b.SecureAddress()}, Topic: "k8s." + name, SASL: login,
				TLS: auth.TLS{Enabled: true, TLS: credentials.TLS{CA: filepath.Join(dir, "ca.pem")}}, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}},
				"kafka.sasl", func() { writeFile(t, dir, "password", []byte(rightPassword+"\n")) })
		})
	}
	writeFile(t, dir, "password", []byte(rightPassword))
	t.Run("a session that ends", func(t *testing.T) { testEndingSession(t, b, dir) })
	t.Run("an expired token", func(t *testing.T) { testExpiringToken(t, b, dir) })
}

// countingMechanism counts how often a sink authenticates.
type countingMechanism struct {
	sasl.Mechanism
	starts atomic.Int64
}

func (m *countingMechanism) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	m.starts.Add(1)
	return m.Mechanism.Authenticate(ctx, host)
}

// testEndingSession publishes until the broker would have ended the sessions twice. The sink authenticates again on its
// connections before that (KIP-368): no call fails, nothing is lost or repeated, and nothing is logged.
func testEndingSession(t *testing.T, b *broker.Broker, dir string) {
	s, log := openSinkWithLog(t, Config{Brokers: []string{b.SecureAddress()}, Topic: "k8s.session",
		SASL: auth.SASL{Mechanism: "scram-sha-512", Username: "exporter", Password: credentials.InFile(filepath.Join(dir, "password"))},
		TLS:  auth.TLS{Enabled: true, TLS: credentials.TLS{CA: filepath.Join(dir, "ca.pem")}}, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	opened, authenticated := countDials(s), &countingMechanism{Mechanism: s.cluster.Dialer.Mechanism}
	s.cluster.Dialer.Mechanism = authenticated
	waitForTopic(t, s)
	lane := laneOf(t, s, pod("a", 1))
	publishUntilAccepted(t, s, lane, pods("a", 1, 2))
	logged, before, next := len(log.Lines()), opened.Load(), 2
	for end := authenticated.starts.Load() + 2*before; authenticated.starts.Load() < end; next++ {
		mustPublish(t, s, lane, pods("a", next, next+1))
	}
	if n := opened.Load(); n != before {
		t.Errorf("%d connections were opened again", n-before)
	}
	if len(log.Lines()) != logged {
		t.Errorf("unexpected log:\n%s", log)
	}
	wantVersions(t, readTopics(t, b.Brokers(), "k8s.session"), 1, next)
}

// testExpiringToken lets a token expire on an open connection, and provides no new one for a while.
func testExpiringToken(t *testing.T, b *broker.Broker, dir string) {
	writeFile(t, dir, "token", []byte(unsignedToken("exporter", 2*time.Second)+"\n"))
	var err error
	s := openSink(t, Config{Brokers: []string{b.SecureAddress()}, Topic: "k8s.expired", RequestTimeout: 5 * time.Second,
		SASL: auth.SASL{Mechanism: "oauthbearer", Token: credentials.InFile(filepath.Join(dir, "token"))},
		TLS:  auth.TLS{Enabled: true, TLS: credentials.TLS{CA: filepath.Join(dir, "ca.pem")}}, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*testTimeout)
	defer cancel()
	lane, sent := laneName("k8s.expired", 0, 1), 0
	for sent == 0 { // until a token is accepted in time
		writeFile(t, dir, "token", []byte(unsignedToken("exporter", 2*time.Second)))
		if sent, err = s.Publish(ctx, lane, pods("a", 1, 2)); ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	for { // until the broker rejects the token
		n, err := s.Publish(ctx, lane, pods("a", sent+1, sent+2))
		sent += n
		var unavailable *sinks.UnavailableError
		if errors.As(err, &unavailable) {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("an expired token is taken: %v", err)
		}
	}
	writeFile(t, dir, "token", []byte(unsignedToken("exporter", time.Hour)))
	publishUntilAccepted(t, s, lane, pods("a", sent+1, sent+5))
	wantVersions(t, readTopics(t, b.Brokers(), "k8s.expired"), 1, sent+5)
}

// addUser creates the credentials of a SCRAM user.
func addUser(t *testing.T, brokers []string, name, password string) {
	t.Helper()
	const iterations = 4096
	for mechanism, hash := range map[kafka.ScramMechanism]func(salt []byte) []byte{
		kafka.ScramMechanismSha256: saltedPassword(password, iterations, 256), kafka.ScramMechanismSha512: saltedPassword(password, iterations, 512),
	} {
		salt := []byte("a salt of the tests")
		withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
			r, err := c.AlterUserScramCredentials(ctx, &kafka.AlterUserScramCredentialsRequest{Upsertions: []kafka.UserScramCredentialsUpsertion{
				{Name: name, Mechanism: mechanism, Iterations: iterations, Salt: salt, SaltedPassword: hash(salt)},
			}})
			if err != nil {
				return err
			}
			return r.Results[0].Error
		})
	}
}

// saltedPassword is Hi of RFC 5802.
func saltedPassword(password string, iterations, bits int) func(salt []byte) []byte {
	return func(salt []byte) []byte {
		var key []byte
		var err error
		if bits == 256 {
			key, err = pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
		} else {
			key, err = pbkdf2.Key(sha512.New, password, salt, iterations, sha512.Size)
		}
		if err != nil {
			panic(err)
		}
		return key
	}
}

// tokenOf returns a function that requests a token as a connection does.
func tokenOf(t *testing.T, from auth.OAuth) func() (string, error) {
	t.Helper()
	m, err := auth.SASL{Mechanism: "oauthbearer", OAuth: from}.NewMechanism(testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	return func() (string, error) {
		_, first, err := m.Authenticate(t.Context(), "")
		return string(first), err
	}
}

func TestATokenIsKeptUntilItIsOld(t *testing.T) {
	t.Parallel()
	for lives, times := range map[time.Duration]int64{time.Hour: 1, 0: 3} {
		url, asked := startTokenEndpoint(t, lives)
		token := tokenOf(t, auth.OAuth{TokenURL: url, ClientID: "exporter", ClientSecret: credentials.Text(rightPassword), Scope: "kafka"})
		for range 3 {
			if text, err := token(); err != nil || !strings.Contains(text, "auth=Bearer ") {
				t.Fatal(text, err)
			}
		}
		if asked.Load() != times {
			t.Errorf("a token that lives %v is asked for %d times, want %d", lives, asked.Load(), times)
		}
	}
}

func TestARefusedSecretIsNotShown(t *testing.T) {
	t.Parallel()
	url, _ := startTokenEndpoint(t, time.Hour)
	_, err := tokenOf(t, auth.OAuth{TokenURL: url, ClientID: "exporter", ClientSecret: credentials.Text(wrongPassword), Scope: "kafka"})()
	if err == nil || strings.Contains(err.Error(), wrongPassword) || !strings.Contains(err.Error(), "invalid_client") {
		t.Errorf("%v", err)
	}
}

func TestAnEndpointThatSendsUsElsewhereIsNotFollowed(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the secret went elsewhere") }))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(server.Close)
	if _, err := tokenOf(t, auth.OAuth{TokenURL: server.URL, ClientID: "exporter", ClientSecret: credentials.Text(rightPassword)})(); err == nil {
		t.Error("a redirect was taken for a token")
	}
}

func TestMutualTLSOnApacheKafka(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := certificates.New(t)
	writeFile(t, dir, "ca.pem", ca.PEM)
	cert, key := ca.Issue(t)
	b := startKafkaIn(t, t.TempDir(), 1, broker.Options{
		Secure: &broker.Secure{Certificate: string(cert), Key: string(key), Clients: string(ca.PEM)}})[0]
	cfg := Config{Brokers: []string{b.SecureAddress()}, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}, TLS: auth.TLS{
		Enabled: true, TLS: credentials.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: issueCertificate(t, dir, certificates.New(t)), Key: filepath.Join(dir, "key.pem")},
	}}
	testCorrectedCredentials(t, cfg, "the server refuses the client certificate", func() { issueCertificate(t, dir, ca) })
}

// issueCertificate writes a new client certificate and its key, and returns the path of the certificate.
func issueCertificate(t *testing.T, dir string, by *certificates.Authority) string {
	t.Helper()
	cert, key := by.Issue(t)
	writeFile(t, dir, "cert.pem", cert)
	writeFile(t, dir, "key.pem", key)
	return filepath.Join(dir, "cert.pem")
}
