package nats

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

// link is one connection of the client library with the inbox the answers come to. It lives through reconnects. When the
// library gives the connection up, or the inbox is refused, the link is closed and the sink makes another.
type link struct {
	absence *absence
	calls   calls
	nkey    func() bool // whether another nkey than the connection's is in its file now
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

// dial starts to connect. The goroutine ends when the library has tried each server once, or at close; from then on
// the library connects by itself.
func dial(cfg Config, a *absence) *link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{absence: a, cancel: cancel,
		dialled: make(chan struct{}), gone: make(chan struct{}), changed: make(chan struct{})}
	go func() {
		defer close(l.dialled)
		l.nc, l.err = l.connect(ctx, cfg)
		if l.err != nil {
			a.begin(l.err.Error())
		}
	}()
	return l
}

func (l *link) connect(ctx context.Context, cfg Config) (*nats.Conn, error) {
	options, err := l.options(ctx, cfg)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(cfg.URL, options...)
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

// options of the connection. Files are read here and by the library, so their errors are the environment's and may pass.
func (l *link) options(ctx context.Context, cfg Config) ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name(connectionName),
		nats.SetCustomDialer(dialer{ctx: ctx}),
		nats.Timeout(dialTimeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(redial),
		nats.ReconnectBufSize(-1), // a buffer replayed after a reconnect would overtake newer messages // I3
		nats.PingInterval(pingInterval),
		nats.FlusherTimeout(cfg.AckTimeout), // a write to a stalled server ends
		nats.CustomInboxPrefix(cfg.InboxPrefix),
		nats.ConnectHandler(l.connected),
		nats.ReconnectHandler(l.connected),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { l.lost(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.absence.begin(reason(err)) }),
		nats.ClosedHandler(l.closed),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) { l.refused(nc, err) }),
	}
	return l.appendAuthentication(options, cfg)
}

func (l *link) appendAuthentication(options []nats.Option, cfg Config) ([]nats.Option, error) {
	if cfg.Credentials != "" {
		options = append(options, nats.UserCredentials(cfg.Credentials))
	}
	if cfg.NkeySeed != "" {
		option, err := nats.NkeyOptionFromSeed(cfg.NkeySeed)
		if err != nil {
			return nil, fmt.Errorf("nats.nkeySeed: %w", err)
		}
		options, l.nkey = append(options, option), differs(option, cfg.NkeySeed)
	}
	if cfg.User != "" {
		options = append(options, nats.UserInfo(cfg.User, cfg.Password))
	}
	if cfg.Token != "" {
		options = append(options, nats.Token(cfg.Token))
	}
	if cfg.TLS.CA != "" {
		options = append(options, nats.RootCAs(cfg.TLS.CA))
	}
	if cfg.TLS.Cert != "" {
		options = append(options, nats.ClientCert(cfg.TLS.Cert, cfg.TLS.Key))
	}
	return options, nil
}

// differs returns a function that says whether the seed file holds another key than option has. The library reads the seed
// at each connect, but the key it announces only once.
func differs(option nats.Option, seed string) func() bool {
	announced := func(option nats.Option) string {
		var o nats.Options
		if option(&o) != nil {
			return ""
		}
		return o.Nkey
	}
	return func() bool {
		now, err := nats.NkeyOptionFromSeed(seed)
		return err == nil && announced(now) != announced(option)
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

// absence is why there is no connection; "" while there is one. Its zero value says that there was none yet. It is safe for
// concurrent use.
type absence struct {
	mu     sync.Mutex
	met    bool
	reason string
}

func (a *absence) begin(reason string) { a.set(reason) }
func (a *absence) end()                { a.set("") }

func (a *absence) set(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.met, a.reason = true, reason
}

func (a *absence) why() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.met {
		return "not connected yet"
	}
	return a.reason
}

// next returns a channel that is closed at the next change of the connection's state.
func (l *link) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *link) notify() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) connected(nc *nats.Conn) {
	l.absence.end()
	l.told.Store(true)
	l.notify()
}

// lost tells every call that its answer will not come: the message may be stored, and must be sent again.
func (l *link) lost(err error) {
	l.told.Store(false)
	if !l.closing.Load() {
		l.absence.begin(reason(err))
	}
	l.calls.fail("", l.why(&sinks.UnavailableError{Reason: "the connection to NATS was lost", Err: err}))
	l.notify()
}

func (l *link) closed(*nats.Conn) {
	l.cancel()
	l.calls.fail("", l.why(&sinks.UnavailableError{Reason: "the connection to NATS was closed", Err: nats.ErrConnectionClosed}))
	l.notify()
	close(l.gone)
}

// why prefers a refusal to what follows from it: a message may have come to wait between the two.
func (l *link) why(follows *sinks.UnavailableError) *sinks.UnavailableError {
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
func (l *link) refused(nc *nats.Conn, err error) {
	if m := publishRefused.FindStringSubmatch(err.Error()); m != nil {
		l.calls.fail(m[1], &deniedError{subject: m[1], err: err})
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

// deniedError says that this user may not publish to a subject. Others may be allowed.
type deniedError struct {
	subject string
	err     error
}

func (e *deniedError) Error() string {
	return fmt.Sprintf("this user may not publish to %q; allow it on the server", e.subject)
}

func (e *deniedError) Unwrap() error { return e.err }

// answered hands an answer to the call whose number the reply subject begins with: INBOX.<call> or INBOX.<call>.<more>.
func (l *link) answered(m *nats.Msg) {
	call, reply, _ := strings.Cut(strings.TrimPrefix(m.Subject, l.inbox), ".")
	number, err := strconv.ParseUint(call, 10, 64)
	if err != nil {
		return // not an answer to anything this link sent
	}
	const noResponders = "503" // ADR-4 and the no_responders option of the client protocol's CONNECT
	l.calls.settle(number, reply, answer{data: m.Data, header: m.Header, noResponder: len(m.Data) == 0 && m.Header.Get("Status") == noResponders})
}

// replyTo returns the subject for answers to a call.
func (l *link) replyTo(number uint64) string { return l.inbox + strconv.FormatUint(number, 10) }

// dead says that the link cannot come back. One that has no connection, and whose nkey is not the one to announce any
// more, is ended.
func (l *link) dead() bool {
	select {
	case <-l.dialled:
	default:
		return false
	}
	if l.err == nil && l.nkey != nil && !l.nc.IsConnected() && l.nkey() {
		l.closing.Store(true)
		l.nc.Close()
	}
	return l.err != nil || l.nc.IsClosed()
}

// await waits until the connection stands and the library has told so, which it does a little later: what is delivered
// before that would be delivered by a sink that is not ready. It gives up when ctx ends, or when the link is dead.
func (l *link) await(ctx context.Context) error {
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

// close ends the connection and waits for the library, within ctx.
func (l *link) close(ctx context.Context) error {
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
