package auth

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	aws "github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

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

// bearer is the mechanism OAUTHBEARER (RFC 7628, KIP-255) with the token that is valid when a connection is made. Brokers
// close connections when their token expires (connections.max.reauth.ms). The next connection uses a new token, and batches
// that were in flight are sent again under the same numbers.
type bearer struct {
	token func(context.Context) (string, error)
}

func (bearer) Name() string { return "OAUTHBEARER" }

func (b bearer) Authenticate(ctx context.Context, _ string) (sasl.Session, []byte, error) {
	token, err := b.token(ctx)
	if err != nil {
		return nil, nil, &CredentialError{err}
	}
	return bearerState{}, []byte("n,,\x01auth=Bearer " + token + "\x01\x01"), nil
}

// bearerState handles the broker's answer: empty, or a refusal. A refusal has to be confirmed, and then the broker sends
// its error code.
type bearerState struct{}

func (bearerState) Challenge(challenge []byte) (done bool, response []byte, err error) {
	return len(challenge) == 0, []byte{1}, nil
}

// CredentialError is the error of missing or unreadable credentials.
type CredentialError struct{ Err error }

// Error returns the text of the cause.
func (e *CredentialError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *CredentialError) Unwrap() error { return e.Err }

// tokenSource requests tokens by client credentials (RFC 6749, 4.4), and caches each until shortly before it expires. It is
// safe for concurrent use.
type tokenSource struct {
	config OAuth
	client *http.Client

	mu      sync.Mutex
	token   string
	renewAt time.Time
}

func newTokenClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		// A redirect would send the secret elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (s *tokenSource) currentToken(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.renewAt) {
		return s.token, nil
	}
	secret, err := readSecret(s.config.ClientSecret, "kafka.sasl.oauth.clientSecret")
	if err != nil {
		return "", err
	}
	grant := clientcredentials.Config{ClientID: s.config.ClientID, ClientSecret: secret, TokenURL: s.config.TokenURL,
		Scopes: strings.Fields(s.config.Scope), AuthStyle: oauth2.AuthStyleInHeader}
	token, err := grant.Token(context.WithValue(ctx, oauth2.HTTPClient, s.client))
	if refused := new(oauth2.RetrieveError); errors.As(err, &refused) {
		err = fmt.Errorf("the endpoint answers %d %s", refused.Response.StatusCode, refused.ErrorCode) // a body may repeat the secret
	}
	if err != nil {
		return "", fmt.Errorf("kafka.sasl.oauth.tokenURL: %w", err)
	}
	s.token = token.AccessToken
	if !token.Expiry.IsZero() { // the endpoint reports a lifetime
		s.renewAt = time.Now().Add(time.Until(token.Expiry) * 4 / 5)
	}
	return s.token, nil
}

const (
	mskTokenLife = 15 * time.Minute // the maximum that MSK brokers accept
	emptySHA256  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	// awsRenewalMargin is how long before their expiry temporary credentials are replaced.
	awsRenewalMargin = 5 * time.Minute
)

// mskToken returns what AWS MSK brokers accept as an OAUTHBEARER token: a presigned request to connect, which is never sent.
func mskToken(region string, by aws.Value, at time.Time) string {
	request := presignedRequest{host: "kafka." + region + ".amazonaws.com", path: "/", region: region, service: "kafka-cluster",
		query: url.Values{"Action": {"kafka-cluster:Connect"}}, body: emptySHA256, at: at, validFor: mskTokenLife}
	return base64.RawURLEncoding.EncodeToString([]byte(request.signedURL(by) + "&User-Agent=kubecdc"))
}

// awsIdentity creates tokens with the credentials of the Pod. It finds these in the environment as the AWS SDKs do: an
// access key, a role for the service account, or EKS Pod Identity. The role of the node and the files of a user are not
// used. It is safe for concurrent use.
type awsIdentity struct {
	region      string
	client      *http.Client
	credentials *aws.Credentials // caches temporary ones
}

func newAWSIdentity(region string, client *http.Client) (*awsIdentity, error) {
	region = cmp.Or(region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	if region == "" {
		return nil, errors.New("kafka.sasl.region: missing, and AWS_REGION is not set; expected the region of the cluster, such as eu-west-1")
	}
	var source aws.Provider = &aws.EnvAWS{}
	if os.Getenv("AWS_ACCESS_KEY_ID") == "" {
		source = &aws.IAM{Region: region, Endpoint: os.Getenv("AWS_ENDPOINT_URL_STS"), ExpiryWindow: awsRenewalMargin}
	}
	return &awsIdentity{region: region, client: client, credentials: aws.New(source)}, nil
}

func (i *awsIdentity) connectionToken(ctx context.Context) (string, error) {
	isSet := func(name string) bool { return os.Getenv(name) != "" }
	if !slices.ContainsFunc([]string{"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"}, isSet) {
		return "", errors.New("AWS credentials: none of AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE (a role for the service account) and " +
			"AWS_CONTAINER_CREDENTIALS_FULL_URI (EKS Pod Identity) is set")
	}
	found, err := i.credentials.GetWithContext(&aws.CredContext{Client: i.client, Context: ctx})
	if err != nil {
		return "", fmt.Errorf("AWS credentials: %w; check AWS_ROLE_ARN and the trust policy of the role, or the Pod Identity association", err)
	}
	return mskToken(i.region, found, time.Now()), nil
}

// presignedRequest is a GET request that is signed in its query: AWS Signature Version 4, "Using Query Parameters".
type presignedRequest struct {
	host, path      string
	region, service string
	query           url.Values // without the parameters of the signature
	body            string     // SHA-256 of the body in hexadecimal, or the placeholder of the service
	at              time.Time
	validFor        time.Duration
}

// signedURL returns the request's address, signed with credentials.
func (p presignedRequest) signedURL(by aws.Value) string {
	const algorithm, second = "AWS4-HMAC-SHA256", "20060102T150405Z"
	at := p.at.UTC()
	day := at.Format("20060102")
	scope := strings.Join([]string{day, p.region, p.service, "aws4_request"}, "/")
	query := url.Values{
		"X-Amz-Algorithm":     {algorithm},
		"X-Amz-Credential":    {by.AccessKeyID + "/" + scope},
		"X-Amz-Date":          {at.Format(second)},
		"X-Amz-Expires":       {strconv.Itoa(int(p.validFor.Seconds()))},
		"X-Amz-SignedHeaders": {"host"},
	}
	if by.SessionToken != "" {
		query.Set("X-Amz-Security-Token", by.SessionToken)
	}
	for name, values := range p.query {
		query[name] = values
	}
	text := strings.ReplaceAll(query.Encode(), "+", "%20") // sorted by name, as the signature requires
	canonical := strings.Join([]string{"GET", p.path, text, "host:" + p.host, "", "host", p.body}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + by.SecretAccessKey)
	for _, part := range []string{day, p.region, p.service, "aws4_request"} {
		key = hmacSHA256(key, part)
	}
	signature := hmacSHA256(key, strings.Join([]string{algorithm, at.Format(second), scope, hex.EncodeToString(hash[:])}, "\n"))
	return "https://" + p.host + p.path + "?" + text + "&X-Amz-Signature=" + hex.EncodeToString(signature)
}

func hmacSHA256(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
