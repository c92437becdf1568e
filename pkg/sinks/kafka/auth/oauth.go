package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

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
