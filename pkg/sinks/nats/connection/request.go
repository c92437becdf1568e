package connection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// UnavailablePause is the time between two calls that wait for the connection, or for a stream's leader. They cost next to
	// nothing, and one of them should be there when NATS is back, however long it was away.
	UnavailablePause = 250 * time.Millisecond
	// retryInterval is how long to wait for an answer that may have got lost with a stream's leader, before it is asked for
	// again.
	retryInterval = time.Second
)

// WaitConnected returns nil when the connection stands. It waits no longer than the timeout of the link.
func (l *Link) WaitConnected(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, l.opts.Timeout)
	defer cancel()
	if err := l.awaitConnected(bounded); err != nil {
		return l.notConnectedError(ctx, err)
	}
	return nil
}

// notConnectedError says why there is no connection, unless the caller does not want to know any more.
func (l *Link) notConnectedError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	reason := l.outage.currentReason()
	if reason == "" { // it came back in this very moment
		reason = err.Error()
	}
	return &sinks.UnavailableError{Reason: "not connected to NATS at " + l.opts.Servers + ": " + reason, After: UnavailablePause, Err: err}
}

// Publish hands a message to the client library, which copies it. That it was taken does not say that it arrives.
func (l *Link) Publish(ctx context.Context, m *nats.Msg) error {
	err := l.nc.PublishMsg(m)
	switch {
	case err == nil:
		return nil
	case isDisconnected(err):
		return l.notConnectedError(ctx, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return &sinks.RejectedError{Reason: fmt.Sprintf("%d bytes and headers exceed the server's max_payload of %d", len(m.Data), l.nc.MaxPayload()),
			TooLarge: true, Err: err}
	case errors.Is(err, nats.ErrHeadersNotSupported):
		return &sinks.UnavailableError{Reason: "the server knows no message headers; use nats-server 2.2 or newer", Err: err}
	}
	return fmt.Errorf("publish: %w", err)
}

// isDisconnected says whether the client library did not take a message, or not all of it, for want of a connection.
func isDisconnected(err error) bool {
	var network net.Error
	return errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionClosed) || errors.As(err, &network)
}

// Request sends a message and waits for what the server says of it, no longer than the timeout of the link.
func (l *Link) Request(ctx context.Context, m *nats.Msg) (Answer, error) {
	answers := make(chan Answer, 1)
	number := l.StartCall(Call{SentTo: SubjectIs(m.Subject), OnAnswer: func(_ string, a Answer) {
		select {
		case answers <- a:
		default: // the first one counts
		}
	}})
	defer l.EndCall(number)
	m.Reply = l.ReplySubject(number)
	if err := l.Publish(ctx, m); err != nil {
		return Answer{}, err
	}
	timeout := time.NewTimer(l.opts.Timeout)
	defer timeout.Stop()
	select {
	case a := <-answers:
		return a, a.Err
	case <-timeout.C:
		return Answer{}, l.UnansweredError(m.Subject)
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// RequestUntilAnswered sends a message until it is answered: a stream that has just lost its leader drops what it is sent. Of the copies
// at most one may have an effect.
func (l *Link) RequestUntilAnswered(ctx context.Context, m *nats.Msg) (a Answer, err error) {
	err = l.RetryUntilAnswered(ctx, m.Subject, func(ctx context.Context) error {
		a, err = l.Request(ctx, m)
		return err
	})
	return a, err
}

// RetryUntilAnswered asks what is asked for of a subject, again and again until ask does not end with its context.
func (l *Link) RetryUntilAnswered(ctx context.Context, subject string, ask func(context.Context) error) error {
	for begun := time.Now(); ; {
		attempt, cancel := context.WithTimeout(ctx, min(retryInterval, l.opts.Timeout))
		err := ask(attempt)
		cancel()
		switch {
		case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return err
		case time.Since(begun) >= l.opts.Timeout:
			return l.UnansweredError(subject)
		}
	}
}

// ErrUnanswered is in the errors that say that nothing came back within the timeout.
var ErrUnanswered = errors.New("no answer")

// UnansweredError says so of a message to a subject.
func (l *Link) UnansweredError(subject string) error {
	return fmt.Errorf("%w for %q within %v", ErrUnanswered, subject, l.opts.Timeout)
}

// Flush waits until the server has read what was sent. A permission it lacks it tells of before that, as an error of the
// connection that may be another caller's: then both send again. before is what LastError said before the first message.
func (l *Link) Flush(ctx context.Context, before error) error {
	bounded, cancel := context.WithTimeout(ctx, l.opts.Timeout)
	defer cancel()
	err := l.nc.FlushWithContext(bounded)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the server has not read the messages within %v", l.opts.Timeout)
	case err != nil:
		return l.notConnectedError(ctx, err)
	}
	after := l.nc.LastError()
	if after == nil || after == before { //nolint:errorlint // identity: a repeated violation is another error value
		return nil
	}
	if m := publishViolation.FindStringSubmatch(after.Error()); m != nil {
		return &DeniedError{Subject: m[1], Err: after}
	}
	return fmt.Errorf("publish: %w", after)
}

// LastError is the last error of the connection that the library knows.
func (l *Link) LastError() error { return l.nc.LastError() }

// Timeout is how long an answer is waited for.
func (l *Link) Timeout() time.Duration { return l.opts.Timeout }

// Conn is the library's connection. Nothing that counts may be published with it.
func (l *Link) Conn() *nats.Conn { return l.nc }
