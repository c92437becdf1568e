package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	maxResponseBytes = 64 << 10              // of the body, which is read so that the connection can be reused
	bodyTimeout      = 50 * time.Millisecond // for the end of a body: about what another connection costs
	maxRefusal       = 1 << 10               // of the body of a refusal that is read
	maxRetryAfter    = 10 * time.Minute      // the longest Retry-After that is respected
)

// CheckServers implements [sinks.ServerChecker].
func (s *Sink) CheckServers(ctx context.Context) error {
	to, err := url.Parse(s.cfg.URL)
	if err != nil {
		return err
	}
	dial, port := sinks.Dial, "80"
	if to.Scheme == "https" {
		dial, port = sinks.TLSDialer(s.cfg.TLS, "webhook.tls"), "443"
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(to.Hostname(), cmp.Or(to.Port(), port)))
	if err != nil {
		return s.classifySendError(err)
	}
	return conn.Close()
}

// postBatch sends messages in one request and waits for the status of the response or the end of ctx. A request abandoned by
// its caller continues until its own end, and the next one of the lane waits for it: two in flight at once could arrive in
// either order. // I3
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
		s.sendRequest(header, body, answered)
	})
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendRequest sends one request and classifies the status of the response, which is sent to answered as soon as it is there.
// It returns when the response has ended, within the bounds of [Sink.discardBody].
func (s *Sink) sendRequest(header http.Header, body []byte, answered chan<- error) {
	ctx, cancel := context.WithTimeout(s.lifetime, s.cfg.Timeout)
	defer cancel()
	request, err := s.newRequest(ctx, header, body)
	if err != nil {
		answered <- err
		return
	}
	response, err := s.client.Do(request)
	if err != nil {
		answered <- s.classifySendError(err)
		return
	}
	defer func() { _ = response.Body.Close() }() // only read
	answered <- classifyResponse(response, len(body))
	s.discardBody(response.Body, cancel)
}

func (s *Sink) newRequest(ctx context.Context, header http.Header, body []byte) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("webhook.url: %w", err)
	}
	request.Header = header
	if err := s.setConfiguredHeaders(header); err != nil {
		return nil, &sinks.UnavailableError{
			Code: condition.SinkUnauthorized, Reason: err.Error(), Remedy: "correct the file; it is read again for each request", Err: err,
		}
	}
	return request, nil
}

// discardBody reads the body of a response to its end, within bounds of time and size, because only then the connection can
// be used again: a receiver may leave its responses without an end.
func (s *Sink) discardBody(body io.Reader, cancel context.CancelFunc) {
	timeout := time.AfterFunc(s.bodyTimeout, cancel)
	defer timeout.Stop()
	n, err := io.Copy(io.Discard, io.LimitReader(body, maxResponseBytes))
	s.connectionsLost.Store(err != nil || n == maxResponseBytes)
}

// Conditions implements [sinks.ConditionReporter]: each request after a response without an end needs a new connection.
func (s *Sink) Conditions() []condition.Status {
	if !s.connectionsLost.Load() {
		return nil
	}
	return []condition.Status{condition.NewStatus("", condition.Problem{
		Code:  condition.SinkNoKeepAlive,
		Cause: fmt.Sprintf("the last response did not end within %v and %d KiB", s.bodyTimeout, maxResponseBytes>>10),
	})}
}

func (s *Sink) setConfiguredHeaders(header http.Header) error {
	header.Set("User-Agent", "kubecdc")
	for _, h := range s.cfg.Headers {
		value, err := readHeader(h.Value)
		if err != nil {
			return fmt.Errorf("webhook.headers, %s: %w", h.Name, err)
		}
		header.Set(h.Name, value)
	}
	if s.cfg.BearerToken != (credentials.Secret{}) {
		token, err := readHeader(s.cfg.BearerToken)
		if err != nil {
			return fmt.Errorf("webhook.bearerToken: %w", err)
		}
		header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// readHeader returns a secret that a header can have (RFC 9110, section 5.5).
func readHeader(s credentials.Secret) (string, error) {
	value, err := s.Read()
	if err == nil && strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		err = errors.New("it has a character that a header cannot have")
	}
	return value, err
}

func (c Config) peer() condition.Peer {
	p := condition.Peer{Address: "webhook.url", Settings: "webhook.tls", Other: "write https:// in webhook.url"}
	if p.Secure = strings.HasPrefix(c.URL, "https:"); p.Secure {
		p.Other = "write http:// in webhook.url"
	}
	return p
}

// classifySendError returns the error of Publish for a request without a response.
func (s *Sink) classifySendError(err error) error {
	if strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`) { // an alert: a record of TLS
		err = &condition.OpeningError{Err: tls.RecordHeaderError{Msg: "it answers with an alert"}}
	}
	p := s.cfg.peer().Problem(err)
	network, isNetwork := errors.AsType[*net.OpError](err)
	switch {
	case errors.As(err, new(*condition.OpeningError)), p.Code == condition.SinkCertificate,
		isNetwork && network.Op != "read" && network.Op != "write": // nothing has arrived
		return &sinks.UnavailableError{Code: p.Code, Reason: "no connection to the webhook: " + p.Cause, Remedy: p.Remedy}
	case errors.Is(err, context.DeadlineExceeded):
		p.Code, p.Cause = condition.SinkTimeout, fmt.Sprintf("no response within %v", s.cfg.Timeout)
		p.Remedy += "; or raise webhook.timeout"
	case !isNetwork && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF): // the library's text quotes the answer
		p = condition.Problem{Code: condition.SinkMisconfigured, Cause: "the webhook does not answer with HTTP/1.1", Remedy: "correct webhook.url"}
	}
	return p.Wrap(nil)
}

// classifyResponse returns the error of Publish for a response; nil if it accepts the messages. Of the response only the
// code of the status is in the error: all other text may repeat what was sent, and errors are logged.
func classifyResponse(response *http.Response, size int) error {
	reason := func(text string) string {
		return strings.TrimSpace(fmt.Sprintf("the webhook answers %d %s", response.StatusCode, http.StatusText(response.StatusCode))) + ": " + text
	}
	unavailable := func(code condition.Code, text, remedy string, after time.Duration) error {
		return &sinks.UnavailableError{Code: code, Reason: reason(text), Remedy: remedy, After: after}
	}
	switch code := response.StatusCode; {
	case code >= 200 && code <= 299:
		return nil
	case code == http.StatusRequestEntityTooLarge, code == http.StatusRequestHeaderFieldsTooLarge:
		return &sinks.RejectedError{Reason: reason(fmt.Sprintf("%d bytes are too large", size)), TooLarge: true}
	case code == http.StatusBadRequest && expectsTLS(response):
		return unavailable(condition.SinkUnreachable, "TLS is on on one side only, the server expects it", "write https:// in webhook.url", 0)
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity:
		return &sinks.RejectedError{Reason: reason("it rejects this event")}
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		wait := parseRetryAfter(response.Header.Get("Retry-After"), time.Now())
		text := "it asks to retry later"
		if wait > 0 {
			text += ", not before " + time.Now().Add(wait).UTC().Format(time.RFC3339)
		}
		return unavailable(condition.SinkBusy, text, "", wait)
	case code >= 300 && code <= 399:
		return unavailable(condition.SinkMisconfigured, "redirects are not followed", "set webhook.url to its new address", 0)
	case code == http.StatusUnauthorized, code == http.StatusForbidden, code == http.StatusProxyAuthRequired:
		return unavailable(condition.SinkUnauthorized, "it refuses the credentials", "check webhook.headers, webhook.bearerToken and webhook.tls", 0)
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed, code == http.StatusGone,
		code == http.StatusUnsupportedMediaType:
		return unavailable(condition.SinkMisconfigured, "it does not take events there", "check webhook.url, and that it accepts CloudEvents in this format", 0)
	case code == http.StatusBadGateway, code == http.StatusGatewayTimeout:
		return unavailable(condition.SinkUnreachable, "its gateway cannot reach it", "look at the gateway, and at the receiver behind it", 0)
	}
	return errors.New(reason("the request is retried"))
}

// expectsTLS reports whether a server refuses a request because it has come without TLS, in the words of Go and of nginx.
func expectsTLS(response *http.Response) bool {
	if response.TLS != nil || response.ContentLength > maxRefusal {
		return false
	}
	begin, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal)) // what is there says it, or not
	return bytes.HasPrefix(begin, []byte("Client sent an HTTP request to an HTTPS server")) ||
		bytes.HasPrefix(begin, []byte("<html>")) && bytes.Contains(begin, []byte("<title>400 The plain HTTP request was sent to HTTPS port"))
}

// parseRetryAfter returns the wait that a Retry-After header asks for (RFC 9110, section 10.2.3): seconds, in any number of
// digits, or a date. An unparsable header is ignored.
func parseRetryAfter(after string, now time.Time) time.Duration {
	seconds, err := strconv.ParseUint(after, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) { // out of range, it is the largest number
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	if date, err := http.ParseTime(after); err == nil {
		return min(max(date.Sub(now), 0), maxRetryAfter)
	}
	return 0
}
