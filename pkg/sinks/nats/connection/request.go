package connection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// UnavailablePause is the time after which to try again without a connection or a stream leader. An attempt is cheap, so
	// it is short and does not grow: delivery resumes soon after NATS is back.
	UnavailablePause = 250 * time.Millisecond
	// retryInterval is the time after which a request is repeated, because its answer may be lost with the stream's leader.
	retryInterval = time.Second
	// maxConnectWait bounds the wait for a connection, which goes on to be tried. It is shorter than what counts as an answer
	// that does not come: there is nobody to answer.
	maxConnectWait = 3 * time.Second
)

// WaitConnected returns nil once the link is connected, or a [sinks.UnavailableError] after maxConnectWait, or the timeout
// of the link if that is shorter.
func (l *Link) WaitConnected(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, min(l.opts.Timeout, maxConnectWait))
	defer cancel()
	if err := l.awaitConnected(bounded); err != nil {
		return l.notConnectedError(ctx, err)
	}
	return nil
}

// notConnectedError returns the reason why there is no connection, or the error of ctx if that has ended.
func (l *Link) notConnectedError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	problem := l.outage.currentProblem()
	if problem == (condition.Problem{}) { // connected again in the meantime
		problem = condition.Problem{Code: condition.SinkUnreachable, Cause: err.Error()}
	}
	return &sinks.UnavailableError{
		Code: problem.Code, Reason: "not connected to NATS at " + l.opts.Servers + ": " + problem.Cause, Remedy: problem.Remedy,
		After: UnavailablePause,
	}
}

// Publish hands a message to the client library, which copies it. A nil error does not mean that the message arrives. A
// message that the server would close the connection for is a [sinks.RejectedError].
func (l *Link) Publish(ctx context.Context, m *nats.Msg) error {
	if err := l.lines.admitMessage(m); err != nil {
		return err
	}
	err := l.nc.PublishMsg(m)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed), errors.As(err, new(net.Error)):
		return l.notConnectedError(ctx, err) // the library took nothing, or a part
	case errors.Is(err, nats.ErrMaxPayload):
		return &sinks.RejectedError{Reason: fmt.Sprintf("%d bytes and headers exceed the server's max_payload of %d", len(m.Data), l.nc.MaxPayload()),
			TooLarge: true, Err: err}
	case errors.Is(err, nats.ErrHeadersNotSupported):
		return &sinks.UnavailableError{
			Code: condition.SinkMisconfigured, Reason: "the server does not support message headers", Remedy: "use nats-server 2.2 or newer", Err: err,
		}
	}
	return fmt.Errorf("publish: %w", err)
}

// Request sends a message and waits for its first answer, no longer than the timeout of the link.
func (l *Link) Request(ctx context.Context, m *nats.Msg) (Answer, error) {
	answers := make(chan Answer, 1)
	number := l.StartCall(Call{SentTo: SubjectIs(m.Subject), OnAnswer: func(_ string, a Answer) { Offer(answers, a) }}) // the first counts
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

// RequestUntilAnswered is Request, but repeats the message until it is answered: a stream that has just lost its leader
// drops requests. The message must be idempotent, or have a condition that only one copy can meet.
func (l *Link) RequestUntilAnswered(ctx context.Context, m *nats.Msg) (a Answer, err error) {
	err = l.RetryUntilAnswered(ctx, m.Subject, func(ctx context.Context) error {
		a, err = l.Request(ctx, m)
		return err
	})
	return a, err
}

// RetryUntilAnswered calls ask, with a short deadline, until it returns anything but its deadline, or until the timeout of
// the link is over. subject is for the error.
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

// ErrUnanswered is wrapped by the errors of messages without an answer within the timeout. They may be stored nevertheless.
var ErrUnanswered = errors.New("no answer")

// TimeoutError marks an error as one of a server that is connected and does not answer.
func TimeoutError(err error) error {
	return condition.Problem{
		Code: condition.SinkTimeout, Remedy: "check that JetStream is enabled for this account and has a leader, and look at the server's load",
	}.Wrap(err)
}

// UnansweredError returns an [ErrUnanswered] for a message to a subject.
func (l *Link) UnansweredError(subject string) error {
	return TimeoutError(fmt.Errorf("%w for %q within %v", ErrUnanswered, subject, l.opts.Timeout))
}

// NoJetStreamError returns why the API of JetStream has no responder.
func (l *Link) NoJetStreamError() error {
	return cmp.Or(l.EndingError(), error(&sinks.UnavailableError{
		Code: condition.SinkTimeout, After: UnavailablePause, Err: nats.ErrNoResponders,
		Reason: "JetStream does not answer: it is off at this server, or for this account, or it has no leader",
		Remedy: "enable JetStream for this server and this account, or bring a majority of the servers back",
	}))
}

// EndingError returns an error if the server has announced that it is going to end: its JetStream ends before its
// connections do.
func (l *Link) EndingError() error {
	if !l.lameDuck.Load() {
		return nil
	}
	return &sinks.UnavailableError{
		Code: condition.SinkUnreachable, After: UnavailablePause, Err: nats.ErrNoResponders,
		Reason: "the server is about to end (lame duck mode), and its JetStream has ended",
		Remedy: "wait until it has started again, or name all servers of its cluster in nats.url",
	}
}

// Timeout returns how long to wait for an answer.
func (l *Link) Timeout() time.Duration { return l.opts.Timeout }

// Conn returns the connection of the library, for reading. Publish through the link, which tracks the answers.
func (l *Link) Conn() *nats.Conn { return l.nc }

// calls are the requests and messages that wait for an answer. The reply subject of each contains its number. They are safe
// for concurrent use.
type calls struct {
	mu     sync.Mutex
	newest uint64
	open   map[uint64]Call
}

// Call is a request, or a series of messages, that waits for answers. Both functions are called with a lock of the link
// held: they must not block, and must not call the link.
type Call struct {
	// SentTo reports whether the call has sent a message to a subject that the server has refused.
	SentTo func(subject string) bool
	// OnAnswer receives every answer until the call ends. reply is the part of the reply subject after the call's number.
	OnAnswer func(reply string, a Answer)
}

// Answer is the server's answer to a message, or the reason why there will be none.
type Answer struct {
	Data         []byte
	Header       nats.Header
	NoResponders bool  // no subscriber or stream takes the subject
	Err          error // why no answer will come; the other fields are zero
}

// Offer sends to a channel that has room, and drops the value else; it never blocks.
func Offer[T any](to chan<- T, value T) {
	select {
	case to <- value:
	default:
	}
}

// StartCall registers a call and returns its number. The caller must end it with EndCall.
func (c *calls) StartCall(one Call) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[uint64]Call{}
	}
	c.newest++
	c.open[c.newest] = one
	return c.newest
}

// EndCall removes a call: later answers to it are dropped.
func (c *calls) EndCall(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, number)
}

// deliverAnswer passes an answer to the call with a number, if that still waits.
func (c *calls) deliverAnswer(number uint64, reply string, a Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, waits := c.open[number]; waits {
		one.OnAnswer(reply, a)
	}
}

// failCalls answers with err all calls that have sent to a subject; "" means all calls.
func (c *calls) failCalls(subject string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.open {
		if subject == "" || one.SentTo(subject) {
			one.OnAnswer("", Answer{Err: err})
		}
	}
}

// SubjectIs returns a [Call.SentTo] for a call that sends to one subject.
func SubjectIs(subject string) func(string) bool {
	return func(refused string) bool { return refused == subject }
}

// IsStreamSubject reports whether a subject is not one of JetStream's API. It is the [Call.SentTo] of a call that sends to
// many subjects of a stream.
func IsStreamSubject(refused string) bool { return !strings.HasPrefix(refused, "$JS.API.") }
