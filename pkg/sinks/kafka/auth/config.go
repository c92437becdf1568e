package auth

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

// TLS configures transport security.
type TLS struct {
	// Enabled turns TLS on.
	Enabled         bool `mapstructure:"enabled"`
	credentials.TLS `mapstructure:",squash"`
	// ServerName replaces the host name when the certificate is verified.
	ServerName string `mapstructure:"serverName"`
}

// SASL configures authentication.
type SASL struct {
	// Mechanism is plain, scram-sha-256, scram-sha-512, oauthbearer or aws-msk-iam; empty: none.
	Mechanism string `mapstructure:"mechanism"`
	// Username of plain and scram.
	Username string `mapstructure:"username"`
	// Password of plain and scram.
	Password credentials.Secret `mapstructure:"password"`
	// Token of oauthbearer, for example {file: PATH} of a projected service account token.
	Token credentials.Secret `mapstructure:"token"`
	// OAuth requests tokens for oauthbearer by client credentials, instead of token.
	OAuth OAuth `mapstructure:"oauth"`
	// AllowCleartextCredentials permits plain and oauthbearer without TLS, and a tokenURL without https.
	AllowCleartextCredentials bool `mapstructure:"allowCleartextCredentials"`
	// Region of the cluster, for aws-msk-iam; empty: AWS_REGION. Credentials are those of the environment.
	Region string `mapstructure:"region"`
}

// OAuth configures the client credentials grant (RFC 6749, 4.4).
type OAuth struct {
	// TokenURL is the token endpoint, https://… Tokens are renewed after four fifths of their lifetime.
	TokenURL string `mapstructure:"tokenURL"`
	// ClientID identifies the client.
	ClientID string `mapstructure:"clientID"`
	// ClientSecret is the client's secret.
	ClientSecret credentials.Secret `mapstructure:"clientSecret"`
	// Scope of the token; optional.
	Scope string `mapstructure:"scope"`
}

// Validate returns what is wrong with t. The error begins with the path of the field ("kafka.tls.enabled: …"). It opens no
// file.
func (t TLS) Validate() error {
	if !t.Enabled && t != (TLS{}) {
		return errors.New("kafka.tls.enabled: false, but other settings of kafka.tls are given; set it to true or remove them")
	}
	if strings.ContainsAny(t.ServerName, " /:@") && net.ParseIP(t.ServerName) == nil {
		return fmt.Errorf("kafka.tls.serverName: %q; expected a host name", t.ServerName)
	}
	if err := t.TLS.Validate(); err != nil {
		return fmt.Errorf("kafka.tls.cert: %w", err)
	}
	return nil
}

// Validate returns what is wrong with s. The error begins with the path of the field ("kafka.sasl.mechanism: …") and
// contains no secret. It opens no file.
func (s SASL) Validate() error {
	const mechanisms = "plain, scram-sha-256, scram-sha-512, oauthbearer or aws-msk-iam"
	none := credentials.Secret{}
	users, tokens := s.Username != "" || s.Password != none, s.Token != none || s.OAuth != OAuth{}
	switch s.Mechanism {
	case "":
		if s != (SASL{}) {
			return errors.New("kafka.sasl.mechanism: missing; expected " + mechanisms)
		}
		return nil
	case "plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "aws-msk-iam":
	default:
		return fmt.Errorf("kafka.sasl.mechanism: %q; expected %s", s.Mechanism, mechanisms)
	}
	if s.Region != "" && s.Mechanism != "aws-msk-iam" {
		return fmt.Errorf("kafka.sasl.region: given, but only aws-msk-iam has a region, and the mechanism is %s; remove it", s.Mechanism)
	}
	switch {
	case s.Mechanism == "aws-msk-iam":
		if users || tokens {
			return errors.New("kafka.sasl.mechanism: aws-msk-iam uses the credentials of the Pod, but others are given; remove them")
		}
		return nil
	case s.Mechanism == "oauthbearer":
		return s.validateTokens(users)
	case tokens:
		return fmt.Errorf("kafka.sasl.mechanism: %s, but token or oauth is given; set it to oauthbearer or remove them", s.Mechanism)
	case s.Username == "":
		return errors.New("kafka.sasl.username: missing; expected the name to authenticate as")
	case s.Password == none:
		return errors.New("kafka.sasl.password: missing; expected {file: PATH}, {env: NAME} or a text")
	}
	return nil
}

// validateTokens checks the settings of oauthbearer.
func (s SASL) validateTokens(users bool) error {
	if users {
		return errors.New("kafka.sasl.username, kafka.sasl.password: given, but oauthbearer uses tokens; remove them")
	}
	o := s.OAuth
	hasToken := s.Token != credentials.Secret{}
	if hasToken == (o != OAuth{}) {
		return errors.New("kafka.sasl.token, kafka.sasl.oauth: expected exactly one of them")
	}
	if hasToken {
		return nil
	}
	if u, err := url.Parse(o.TokenURL); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return errors.New("kafka.sasl.oauth.tokenURL: expected the address of a token endpoint, https://…")
	}
	if o.ClientID == "" {
		return errors.New("kafka.sasl.oauth.clientID: missing; expected the ID of the client")
	}
	if o.ClientSecret == (credentials.Secret{}) {
		return errors.New("kafka.sasl.oauth.clientSecret: missing; expected {file: PATH}, {env: NAME} or a text")
	}
	return nil
}

// ClientConfig reads the files and returns the TLS configuration for a connection to host.
func (t TLS) ClientConfig(host string) (*tls.Config, error) {
	return t.TLS.ClientConfig("kafka.tls", cmp.Or(t.ServerName, host))
}

// NewMechanism returns the SASL mechanism; nil when SASL is off. It reads the files, so that a wrong path fails at start;
// they are read again for every connection.
func (s SASL) NewMechanism(timeout time.Duration) (sasl.Mechanism, error) {
	switch s.Mechanism {
	case "":
		return nil, nil
	case "oauthbearer":
		return s.newBearer(newTokenClient(timeout))
	case "aws-msk-iam":
		identity, err := newAWSIdentity(s.Region, newTokenClient(timeout))
		if err != nil {
			return nil, err
		}
		return bearer{identity.connectionToken}, nil
	}
	if _, err := s.readPassword(); err != nil {
		return nil, err
	}
	return s.newPasswordMechanism(), nil
}

// newPasswordMechanism returns PLAIN or SCRAM with the password that is valid when a connection is made.
func (s SASL) newPasswordMechanism() sasl.Mechanism {
	if s.Mechanism == "plain" {
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := s.readPassword()
			return plain.Auth{User: s.Username, Pass: password}, err
		})
	}
	read := func(context.Context) (scram.Auth, error) {
		password, err := s.readPassword()
		return scram.Auth{User: s.Username, Pass: password}, err
	}
	if s.Mechanism == "scram-sha-256" {
		return scram.Sha256(read)
	}
	return scram.Sha512(read)
}

func (s SASL) readPassword() (string, error) {
	password, err := readSecret(s.Password, "kafka.sasl.password")
	if err != nil {
		return "", &CredentialError{err}
	}
	return password, nil
}

func (s SASL) newBearer(client *http.Client) (sasl.Mechanism, error) {
	if s.Token == (credentials.Secret{}) {
		return bearer{(&tokenSource{config: s.OAuth, client: client}).currentToken}, nil
	}
	read := func(context.Context) (string, error) { return readSecret(s.Token, "kafka.sasl.token") }
	if _, err := read(context.Background()); err != nil {
		return nil, err
	}
	return bearer{read}, nil
}

// readSecret returns the text of a secret; key begins its error.
func readSecret(s credentials.Secret, key string) (string, error) {
	text, err := s.Read()
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return text, nil
}
