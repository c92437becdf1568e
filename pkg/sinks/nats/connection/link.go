package connection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	connectionName    = "kubecdc"
	dialTimeout       = 5 * time.Second
	pingInterval      = 10 * time.Second // a silent connection is given up after three of them
	minReconnectDelay = 10 * time.Millisecond
	maxReconnectDelay = time.Second
)

// Options say what to connect to.
type Options struct {
	URL         string        // of the servers, separated by commas
	Servers     string        // the same for people, without secrets
	InboxPrefix string        // of the answers' subjects
	Timeout     time.Duration // for an answer, and for a connection

	// Authenticate returns the options of the library that say who we are. It reads files, and its error is the
	// environment's. expired, which may be nil, says whether a connection that is down has to be made anew to announce
	// another key.
	Authenticate func() (options []nats.Option, expired func() bool, err error)
}

// Link is one connection of the client library with the inbox the answers come to. It lives through reconnects. When the
// library gives the connection up, or the inbox is refused, the link is closed and its owner dials another. It is safe for
// concurrent use.
type Link struct {
	opts    Options
	outage  *Outage
	calls   calls
	expired func() bool // see Options.Authenticate
	inbox   string      // prefix of the reply subjects, with the dot at its end

	dialled           chan struct{} // closed when nc and err are set
	nc                *nats.Conn
	err               error
	cancel            context.CancelFunc                     // ends dialling, and whatever was dialled
	closing           atomic.Bool                            // the end is our own doing, and why is known
	refusal           atomic.Pointer[sinks.UnavailableError] // why that is, when the server refused what the link cannot do without
	libraryClosed     chan struct{}                          // closed when the library has closed nc
	connectedReported atomic.Bool                            // the library has told that nc stands, and absence knows

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when the connection's state may have changed
}

// Dial starts to connect. The goroutine ends when the library has tried each server once, or at Close; from then on
// the library connects by itself. Why there is no connection is noted in absence, which outlives the link.
func Dial(o Options, absence *Outage) *Link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{opts: o, outage: absence, cancel: cancel,
		dialled: make(chan struct{}), libraryClosed: make(chan struct{}), changed: make(chan struct{})}
	go func() {
		defer close(l.dialled)
		l.nc, l.err = l.dialServers(ctx)
		if l.err != nil {
			absence.startOutage(l.err.Error())
		}
	}()
	return l
}

func (l *Link) dialServers(ctx context.Context) (*nats.Conn, error) {
	options, expired, err := l.opts.Authenticate()
	if err != nil {
		return nil, err
	}
	l.expired = expired
	nc, err := nats.Connect(l.opts.URL, append(options, l.clientOptions(ctx)...)...)
	if err != nil {
		return nil, err
	}
	l.inbox = nc.NewInbox() + "."
	if _, err := nc.Subscribe(l.inbox+">", l.dispatchAnswer); err != nil {
		nc.Close()
		return nil, fmt.Errorf("subscribe to the inbox: %w", err)
	}
	return nc, nil
}

func (l *Link) clientOptions(ctx context.Context) []nats.Option {
	return []nats.Option{
		nats.Name(connectionName),
		nats.SetCustomDialer(dialer{ctx: ctx}),
		nats.Timeout(dialTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ReconnectBufSize(-1), // a buffer replayed after a reconnect would overtake newer messages // I3
		nats.PingInterval(pingInterval),
		nats.FlusherTimeout(l.opts.Timeout), // a write to a stalled server ends
		nats.CustomInboxPrefix(l.opts.InboxPrefix),
		nats.ConnectHandler(l.handleConnected),
		nats.ReconnectHandler(l.handleConnected),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { l.handleDisconnected(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.outage.startOutage(disconnectReason(err)) }),
		nats.ClosedHandler(l.handleClosed),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) { l.handleAsyncError(nc, err) }),
	}
}

// dialer lets close end a dial, and the wait for a greeting, that nobody answers.
type dialer struct{ ctx context.Context }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &boundConn{Conn: conn, release: context.AfterFunc(d.ctx, func() { conn.Close() })}, nil
}

// boundConn is closed when the context of its dialer ends.
type boundConn struct {
	net.Conn
	release func() bool // forgets the context
}

func (c *boundConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// reconnectDelay says how long to wait after all servers were tried for the nth time: doubled up to a limit, half of it random.
func reconnectDelay(n int) time.Duration {
	limit := min(maxReconnectDelay, minReconnectDelay<<min(n, 10))
	return limit/2 + rand.N(limit/2)
}

// unreachableRemedy is what to do where a server cannot be reached.
const unreachableRemedy = "; check nats.url, the network, and that the server runs"

// disconnectReason words why there is no connection. It leaves addresses out: with several servers each has its own, and the
// reason would change at every attempt. All of them are named beside it.
func disconnectReason(err error) string {
	var lookup *net.DNSError
	var network *net.OpError
	switch {
	case err == nil:
		return "closed by the server"
	case errors.As(err, &lookup):
		return "look up the server's name: " + lookup.Err + unreachableRemedy
	case errors.As(err, &network):
		return network.Op + ": " + network.Err.Error() + unreachableRemedy
	}
	return err.Error()
}

// Outage is why there is no connection; "" while there is one. Its zero value says that there was none yet. It is safe for
// concurrent use.
type Outage struct {
	mu     sync.Mutex
	known  bool
	reason string
}

func (a *Outage) startOutage(reason string) { a.setReason(reason) }
func (a *Outage) endOutage()                { a.setReason("") }

func (a *Outage) setReason(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.reason = true, reason
}

func (a *Outage) currentReason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		return "not connected yet"
	}
	return a.reason
}

// nextChange returns a channel that is closed at the next change of the connection's state.
func (l *Link) nextChange() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *Link) notifyChange() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Link) handleConnected(nc *nats.Conn) {
	l.outage.endOutage()
	l.connectedReported.Store(true)
	l.notifyChange()
}

// handleDisconnected tells every call that its answer will not come: the message may be stored, and must be sent again.
func (l *Link) handleDisconnected(err error) {
	l.connectedReported.Store(false)
	if !l.closing.Load() {
		l.outage.startOutage(disconnectReason(err))
	}
	l.calls.failCalls("", l.preferRefusal(&sinks.UnavailableError{Reason: "the connection to NATS was lost", Err: err}))
	l.notifyChange()
}

func (l *Link) handleClosed(*nats.Conn) {
	l.cancel()
	l.calls.failCalls("", l.preferRefusal(&sinks.UnavailableError{Reason: "the connection to NATS was closed", Err: nats.ErrConnectionClosed}))
	l.notifyChange()
	close(l.libraryClosed)
}

// preferRefusal prefers a refusal to what follows from it: a message may have come to wait between the two.
func (l *Link) preferRefusal(follows *sinks.UnavailableError) *sinks.UnavailableError {
	if refusal := l.refusal.Load(); refusal != nil {
		return refusal
	}
	return follows
}

// Permission violations come as text only, in the words of nats-server/v2 server/client.go (pubPermissionViolation and
// its neighbours), and without the number of the message they speak of.
var (
	publishViolation   = regexp.MustCompile(`(?i)violation for publish to "([^"]*)"`)
	subscribeViolation = regexp.MustCompile(`(?i)violation for subscription to "([^"]*)"`)
)

// handleAsyncError gives a permission violation to those who sent to that subject. Without the inbox no answer can come at
// all, and the server does not try a refused subscription again by itself: that ends the link.
func (l *Link) handleAsyncError(nc *nats.Conn, err error) {
	if m := publishViolation.FindStringSubmatch(err.Error()); m != nil {
		l.calls.failCalls(m[1], &DeniedError{Subject: m[1], Err: err})
	}
	if m := subscribeViolation.FindStringSubmatch(err.Error()); m != nil {
		reason := fmt.Sprintf("this user may not subscribe to its inbox %q; allow that on the server, or set nats.inboxPrefix", m[1])
		refusal := &sinks.UnavailableError{Reason: reason, Err: err}
		l.refusal.Store(refusal)
		l.outage.startOutage(reason)
		l.calls.failCalls("", refusal)
		l.closing.Store(true)
		nc.Close()
	}
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
		l.outage.startOutage(disconnectReason(err))
	}
}

// DeniedError says that this user may not publish to a subject. Others may be allowed.
type DeniedError struct {
	Subject string
	Err     error // in the library's words
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("this user may not publish to %q; allow it on the server", e.Subject)
}

func (e *DeniedError) Unwrap() error { return e.Err }

// dispatchAnswer hands an answer to the call whose number the reply subject begins with: INBOX.<call> or INBOX.<call>.<more>.
func (l *Link) dispatchAnswer(m *nats.Msg) {
	call, reply, _ := strings.Cut(strings.TrimPrefix(m.Subject, l.inbox), ".")
	number, err := strconv.ParseUint(call, 10, 64)
	if err != nil {
		return // not an answer to anything this link sent
	}
	const noResponders = "503" // ADR-4 and the no_responders option of the client protocol's CONNECT
	l.calls.deliverAnswer(number, reply, Answer{Data: m.Data, Header: m.Header, NoResponders: len(m.Data) == 0 && m.Header.Get("Status") == noResponders})
}

// StartCall takes a call up and returns its number. The caller ends it.
func (l *Link) StartCall(one Call) uint64 { return l.calls.addCall(one) }

// EndCall forgets a call: what comes for it later is dropped.
func (l *Link) EndCall(number uint64) { l.calls.removeCall(number) }

// ReplySubject returns the subject for answers to a call. What follows it behind a dot is told with the answer.
func (l *Link) ReplySubject(number uint64) string { return l.inbox + strconv.FormatUint(number, 10) }

// IsDead says that the link cannot come back. One that has no connection, and whose key is not the one to announce any
// more, is ended.
func (l *Link) IsDead() bool {
	select {
	case <-l.dialled:
	default:
		return false
	}
	if l.err == nil && l.expired != nil && !l.nc.IsConnected() && l.expired() {
		l.closing.Store(true)
		l.nc.Close()
	}
	return l.err != nil || l.nc.IsClosed()
}

// awaitConnected waits until the connection stands and the library has told so, which it does a little later: what is delivered
// before that would be delivered by a sink that is not ready. It gives up when ctx ends, or when the link is dead.
func (l *Link) awaitConnected(ctx context.Context) error {
	select {
	case <-l.dialled:
	case <-ctx.Done():
		return ctx.Err()
	}
	for l.err == nil {
		change := l.nextChange()
		switch {
		case l.nc.IsConnected() && l.connectedReported.Load():
			return nil
		case l.nc.IsClosed():
			return nats.ErrConnectionClosed
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return l.err
}

// Close ends the connection and waits for the library, within ctx.
func (l *Link) Close(ctx context.Context) error {
	l.closing.Store(true)
	select {
	case <-l.dialled:
	default:
		l.cancel() // nothing stands yet that could be closed in order
	}
	select {
	case <-l.dialled:
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.nc == nil { // dialling failed
		return nil
	}
	l.nc.Close()
	select {
	case <-l.libraryClosed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
