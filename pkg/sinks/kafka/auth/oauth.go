package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
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

// maxTokenAnswer bounds the response of a token endpoint, in bytes.
const maxTokenAnswer = 1 << 20

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

// sendRequest sends a request and reads its response. Its error contains no more of the request than the address.
func sendRequest(client *http.Client, request *http.Request) (status int, body []byte, err error) {
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, maxTokenAnswer))
	return response.StatusCode, body, err
}

func (s *tokenSource) currentToken(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.renewAt) {
		return s.token, nil
	}
	token, lives, err := s.requestToken(ctx)
	if err != nil {
		return "", fmt.Errorf("kafka.sasl.oauth.tokenURL: %w", err)
	}
	s.token, s.renewAt = token, time.Now().Add(lives*4/5)
	return token, nil
}

// requestToken returns a new token and its lifetime; 0 if the endpoint does not report it.
func (s *tokenSource) requestToken(ctx context.Context) (token string, lives time.Duration, err error) {
	secret, err := readSecret(s.config.ClientSecret, "kafka.sasl.oauth.clientSecret")
	if err != nil {
		return "", 0, err
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if s.config.Scope != "" {
		form.Set("scope", s.config.Scope)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.config.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Accept", "application/json")
	request.SetBasicAuth(url.QueryEscape(s.config.ClientID), url.QueryEscape(secret))
	status, body, err := sendRequest(s.client, request)
	if err != nil {
		return "", 0, err
	}
	var answer struct {
		Token   string  `json:"access_token"`
		Expires float64 `json:"expires_in"` // seconds
		Error   string  `json:"error"`
	}
	unread := json.Unmarshal(body, &answer)
	switch {
	case status != http.StatusOK:
		return "", 0, fmt.Errorf("the endpoint answers %d %s", status, answer.Error)
	case unread != nil || answer.Token == "":
		return "", 0, errors.New("the endpoint answers without an access_token")
	}
	return answer.Token, time.Duration(answer.Expires * float64(time.Second)), nil
}
