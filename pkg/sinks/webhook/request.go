package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	maxResponseBytes = 64 << 10 // of a response, so much is read, so that the connection can be reused
	maxQuotedBytes   = 200      // and so much is quoted in errors
	maxSecretBytes   = 1 << 20  // a larger file is not a secret: its path is wrong
	dialTimeout      = 5 * time.Second
	idleTimeout      = 90 * time.Second
	maxRetryAfter    = 10 * time.Minute // the longest Retry-After that is respected
)

// newClient returns a client that connects to the configured host only.
func newClient(cfg Config) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
			DialTLSContext:         cfg.TLS.dialTLS,
			MaxIdleConnsPerHost:    cfg.Lanes,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxResponseBytes,
		},
	}
}

// dialTLS opens a TLS connection with the current contents of the files.
func (t TLS) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("webhook.tls.ca: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("webhook.tls.ca: %s holds no certificate", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("webhook.tls.cert: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: config}).DialContext(ctx, network, address)
}

// postBatch sends messages in one request and waits for the response or the end of ctx. A request abandoned by its caller
// continues until its own end, and the next one of the lane waits for it: two in flight at once could arrive in either
// order. // I3
func (s *Sink) postBatch(ctx context.Context, slot chan struct{}, batch []sinks.Message) error {
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	header := make(http.Header)
	body := s.encodeRequest(header, batch)
	answered := make(chan error, 1)
	s.requests.Go(func() {
		defer func() { <-slot }()
		answered <- s.sendRequest(header, body)
	})
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendRequest sends one request and classifies the response.
func (s *Sink) sendRequest(header http.Header, body []byte) error {
	ctx, cancel := context.WithTimeout(s.lifetime, s.cfg.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("webhook.url: %w", err)
	}
	request.Header = header
	secrets, err := s.setConfiguredHeaders(header)
	if err != nil {
		return &sinks.UnavailableError{Reason: err.Error(), Err: err}
	}
	response, err := s.client.Do(request)
	if err != nil {
		return s.classifySendError(err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	// The status decides, even if the body cannot be read.
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes))
	return classifyResponse(response, quoteResponse(text, secrets), len(body))
}

// setConfiguredHeaders sets the configured headers and returns the secrets among their values.
func (s *Sink) setConfiguredHeaders(header http.Header) (secrets []string, err error) {
	if u, err := url.Parse(s.cfg.URL); err == nil && len(u.RequestURI()) > 1 { // the receiver may quote it
		secrets = append(secrets, u.RequestURI(), u.EscapedPath())
	}
	header.Set("User-Agent", "kubecdc")
	for _, h := range s.cfg.Headers {
		value := h.Value
		if h.File != "" {
			if value, err = readSecret(h.File); err != nil {
				return nil, fmt.Errorf("webhook.headers, %s: %w", h.Name, err)
			}
		}
		if h.File != "" || credentialHeader.MatchString(h.Name) {
			secrets = append(secrets, value)
		}
		header.Set(h.Name, value)
	}
	if s.cfg.BearerTokenFile != "" {
		token, err := readSecret(s.cfg.BearerTokenFile)
		if err != nil {
			return nil, fmt.Errorf("webhook.bearerTokenFile: %w", err)
		}
		header.Set("Authorization", "Bearer "+token)
		secrets = append(secrets, token)
	}
	return secrets, nil
}

// readSecret returns the content of a file without surrounding white space.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	content, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(content))
	switch {
	case value == "":
		return "", fmt.Errorf("file %s is empty", path)
	case len(content) > maxSecretBytes || !isHeaderValue(value):
		return "", fmt.Errorf("the content of file %s cannot be a header", path)
	}
	return value, nil
}

// classifySendError returns the error of Publish for a request without a response.
func (s *Sink) classifySendError(err error) error {
	var lookup *net.DNSError
	var network *net.OpError
	var trust *tls.CertificateVerificationError
	var file *os.PathError
	var alert tls.AlertError
	switch {
	case errors.As(err, &lookup), errors.As(err, &trust), errors.As(err, &file), errors.As(err, &alert),
		errors.As(err, &network) && (network.Op == "dial" || network.Op == "remote error"):
		return &sinks.UnavailableError{Reason: "no connection to the webhook: " + withoutURL(err).Error(), Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no response within %v", s.cfg.Timeout)
	}
	return fmt.Errorf("post: %w", withoutURL(err)) // the connection broke; the events may have arrived
}

// withoutURL removes the URL, which may hold a secret, from an error of the client.
func withoutURL(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// classifyResponse returns the error of Publish for a response; nil if it accepts the messages. quoted is its body for
// errors.
func classifyResponse(response *http.Response, quoted string, size int) error {
	reason := func(text string) string {
		return fmt.Sprintf("the webhook answers %s: %s%s", response.Status, text, quoted)
	}
	switch code := response.StatusCode; {
	case code >= 200 && code <= 299:
		return nil
	case code == http.StatusRequestEntityTooLarge, code == http.StatusRequestHeaderFieldsTooLarge:
		return &sinks.RejectedError{Reason: reason(fmt.Sprintf("%d bytes are too large", size)), TooLarge: true}
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity:
		return &sinks.RejectedError{Reason: reason("it rejects this event")}
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		wait := parseRetryAfter(response.Header.Get("Retry-After"), time.Now())
		return &sinks.UnavailableError{Reason: reason("it asks to retry later"), After: wait}
	case code >= 300 && code <= 399:
		return &sinks.UnavailableError{Reason: reason("redirects are not followed; set webhook.url to its new address")}
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusProxyAuthRequired:
		return &sinks.UnavailableError{Reason: reason("check webhook.headers, webhook.bearerTokenFile and webhook.tls")}
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed, code == http.StatusGone,
		code == http.StatusUnsupportedMediaType:
		return &sinks.UnavailableError{Reason: reason("check webhook.url, and that it accepts CloudEvents in this format")}
	case code == http.StatusBadGateway, code == http.StatusGatewayTimeout:
		return &sinks.UnavailableError{Reason: reason("its gateway cannot reach it")}
	}
	return errors.New(reason("the request is retried"))
}

// parseRetryAfter returns the wait that a Retry-After header asks for (RFC 9110, section 10.2.3): seconds, or a date. An
// unparsable header is ignored.
func parseRetryAfter(after string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(after, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if date, err := http.ParseTime(after); err == nil {
		return min(max(date.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// quoteResponse returns the beginning of a response body for an error; "" if it is empty or repeats a secret.
func quoteResponse(text []byte, secrets []string) string {
	line := strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "")), " ")
	for _, secret := range secrets {
		if strings.Contains(line, secret) {
			return ""
		}
	}
	if line == "" {
		return ""
	}
	if len(line) > maxQuotedBytes {
		line = strings.ToValidUTF8(line[:maxQuotedBytes], "") + "…"
	}
	return "; response body: " + strconv.Quote(line)
}
