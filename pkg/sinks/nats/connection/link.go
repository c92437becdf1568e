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
	connectionName = "kubecdc"
	dialTimeout    = 5 * time.Second
	pingInterval   = 10 * time.Second // a silent connection is given up after three of them
	minRedial      = 10 * time.Millisecond
	maxRedial      = time.Second
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
	o       Options
	absence *Absence
	calls   calls
	expired func() bool // see Options.Authenticate
	inbox   string      // prefix of the reply subjects, with the dot at its end

	dialled chan struct{} // closed when nc and err are set
	nc      *nats.Conn
	err     error
	cancel  context.CancelFunc                     // ends dialling, and whatever was dialled
	closing atomic.Bool                            // the end is our own doing, and why is known
	refusal atomic.Pointer[sinks.UnavailableError] // why that is, when the server refused what the link cannot do without
	gone    chan struct{}                          // closed when the library has closed nc
	told    atomic.Bool                            // the library has told that nc stands, and absence knows

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when the connection's state may have changed
}

// Dial starts to connect. The goroutine ends when the library has tried each server once, or at Close; from then on
// the library connects by itself. Why there is no connection is noted in absence, which outlives the link.
func Dial(o Options, absence *Absence) *Link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{o: o, absence: absence, cancel: cancel,
		dialled: make(chan struct{}), gone: make(chan struct{}), changed: make(chan struct{})}
	go func() {
		defer close(l.dialled)
		l.nc, l.err = l.connect(ctx)
		if l.err != nil {
			absence.begin(l.err.Error())
		}
	}()
	return l
}

func (l *Link) connect(ctx context.Context) (*nats.Conn, error) {
	options, expired, err := l.o.Authenticate()
	if err != nil {
		return nil, err
	}
	l.expired = expired
	nc, err := nats.Connect(l.o.URL, append(options, l.options(ctx)...)...)
	if err != nil {
		return nil, err
	}
	l.inbox = nc.NewInbox() + "."
	if _, err := nc.Subscribe(l.inbox+">", l.answered); err != nil {
		nc.Close()
		return nil, fmt.Errorf("subscribe to the inbox: %w", err)
	}
	return nc, nil
}

func (l *Link) options(ctx context.Context) []nats.Option {
	return []nats.Option{
		nats.Name(connectionName),
		nats.SetCustomDialer(dialer{ctx: ctx}),
		nats.Timeout(dialTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(redial),
		nats.ReconnectBufSize(-1), // a buffer replayed after a reconnect would overtake newer messages // I3
		nats.PingInterval(pingInterval),
		nats.FlusherTimeout(l.o.Timeout), // a write to a stalled server ends
		nats.CustomInboxPrefix(l.o.InboxPrefix),
		nats.ConnectHandler(l.connected),
		nats.ReconnectHandler(l.connected),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { l.lost(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.absence.begin(reason(err)) }),
		nats.ClosedHandler(l.closed),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) { l.refused(nc, err) }),
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

// redial says how long to wait after all servers were tried for the nth time: doubled up to a limit, half of it random.
func redial(n int) time.Duration {
	limit := min(maxRedial, minRedial<<min(n, 10))
	return limit/2 + rand.N(limit/2)
}

// unreached is what to do where a server cannot be reached.
const unreached = "; check nats.url, the network, and that the server runs"

// reason words why there is no connection. It leaves addresses out: with several servers each has its own, and the
// reason would change at every attempt. All of them are named beside it.
func reason(err error) string {
	var lookup *net.DNSError
	var network *net.OpError
	switch {
	case err == nil:
		return "closed by the server"
	case errors.As(err, &lookup):
		return "look up the server's name: " + lookup.Err + unreached
	case errors.As(err, &network):
		return network.Op + ": " + network.Err.Error() + unreached
	}
	return err.Error()
}

// Absence is why there is no connection; "" while there is one. Its zero value says that there was none yet. It is safe for
// concurrent use.
type Absence struct {
	mu     sync.Mutex
	met    bool
	reason string
}

func (a *Absence) begin(reason string) { a.set(reason) }
func (a *Absence) end()                { a.set("") }

func (a *Absence) set(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.met, a.reason = true, reason
}

func (a *Absence) why() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.met {
		return "not connected yet"
	}
	return a.reason
}

// next returns a channel that is closed at the next change of the connection's state.
func (l *Link) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *Link) notify() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Link) connected(nc *nats.Conn) {
	l.absence.end()
	l.told.Store(true)
	l.notify()
}

// lost tells every call that its answer will not come: the message may be stored, and must be sent again.
func (l *Link) lost(err error) {
	l.told.Store(false)
	if !l.closing.Load() {
		l.absence.begin(reason(err))
	}
	l.calls.fail("", l.why(&sinks.UnavailableError{Reason: "the connection to NATS was lost", Err: err}))
	l.notify()
}

func (l *Link) closed(*nats.Conn) {
	l.cancel()
	l.calls.fail("", l.why(&sinks.UnavailableError{Reason: "the connection to NATS was closed", Err: nats.ErrConnectionClosed}))
	l.notify()
	close(l.gone)
}

// why prefers a refusal to what follows from it: a message may have come to wait between the two.
func (l *Link) why(follows *sinks.UnavailableError) *sinks.UnavailableError {
	if refusal := l.refusal.Load(); refusal != nil {
		return refusal
	}
	return follows
}

// Permission violations come as text only, in the words of nats-server/v2 server/client.go (pubPermissionViolation and
// its neighbours), and without the number of the message they speak of.
var (
	publishRefused   = regexp.MustCompile(`(?i)violation for publish to "([^"]*)"`)
	subscribeRefused = regexp.MustCompile(`(?i)violation for subscription to "([^"]*)"`)
)

// refused gives a permission violation to those who sent to that subject. Without the inbox no answer can come at
// all, and the server does not try a refused subscription again by itself: that ends the link.
func (l *Link) refused(nc *nats.Conn, err error) {
	if m := publishRefused.FindStringSubmatch(err.Error()); m != nil {
		l.calls.fail(m[1], &DeniedError{Subject: m[1], Err: err})
	}
	if m := subscribeRefused.FindStringSubmatch(err.Error()); m != nil {
		reason := fmt.Sprintf("this user may not subscribe to its inbox %q; allow that on the server, or set nats.inboxPrefix", m[1])
		refusal := &sinks.UnavailableError{Reason: reason, Err: err}
		l.refusal.Store(refusal)
		l.absence.begin(reason)
		l.calls.fail("", refusal)
		l.closing.Store(true)
		nc.Close()
	}
	if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
		l.absence.begin(reason(err))
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

// answered hands an answer to the call whose number the reply subject begins with: INBOX.<call> or INBOX.<call>.<more>.
func (l *Link) answered(m *nats.Msg) {
	call, reply, _ := strings.Cut(strings.TrimPrefix(m.Subject, l.inbox), ".")
	number, err := strconv.ParseUint(call, 10, 64)
	if err != nil {
		return // not an answer to anything this link sent
	}
	const noResponders = "503" // ADR-4 and the no_responders option of the client protocol's CONNECT
	l.calls.settle(number, reply, Answer{Data: m.Data, Header: m.Header, NoResponder: len(m.Data) == 0 && m.Header.Get("Status") == noResponders})
}

// Begin takes a call up and returns its number. The caller ends it.
func (l *Link) Begin(one Call) uint64 { return l.calls.begin(one) }

// End forgets a call: what comes for it later is dropped.
func (l *Link) End(number uint64) { l.calls.end(number) }

// ReplyTo returns the subject for answers to a call. What follows it behind a dot is told with the answer.
func (l *Link) ReplyTo(number uint64) string { return l.inbox + strconv.FormatUint(number, 10) }

// Dead says that the link cannot come back. One that has no connection, and whose key is not the one to announce any
// more, is ended.
func (l *Link) Dead() bool {
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

// await waits until the connection stands and the library has told so, which it does a little later: what is delivered
// before that would be delivered by a sink that is not ready. It gives up when ctx ends, or when the link is dead.
func (l *Link) await(ctx context.Context) error {
	select {
	case <-l.dialled:
	case <-ctx.Done():
		return ctx.Err()
	}
	for l.err == nil {
		change := l.next()
		switch {
		case l.nc.IsConnected() && l.told.Load():
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
	case <-l.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
