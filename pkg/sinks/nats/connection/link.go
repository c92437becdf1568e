package connection

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	connectionName    = "kubecdc"
	pingInterval      = 10 * time.Second // the library closes a connection that misses three of them
	minReconnectDelay = 10 * time.Millisecond
	maxReconnectDelay = time.Second
)

// Options configure a link.
type Options struct {
	URL         string        // of the servers, separated by commas
	Servers     string        // the servers' addresses without credentials, for messages
	InboxPrefix string        // of the reply subjects
	Timeout     time.Duration // for an answer, and for a connection

	HandshakeFirst bool // TLS begins before the server has sent anything

	// Authenticate returns the library options with the credentials. It reads files, so its error may be transient. expired,
	// which may be nil, reports whether a lost connection must be dialled again because another key must be announced.
	Authenticate func() (options []nats.Option, expired func() bool, err error)
}

// Link is one connection of the client library, with the inbox for its answers. It survives reconnects. If the library gives
// the connection up, or the server refuses the inbox, the link is dead and its owner dials another. It is safe for
// concurrent use.
type Link struct {
	calls

	opts    Options
	outage  *Outage
	lines   sentLines
	expired func() bool // see Options.Authenticate
	inbox   string      // prefix of the reply subjects, with the dot at its end

	dialled           chan struct{} // closed when nc and err are set
	nc                *nats.Conn
	err               error
	current           atomic.Pointer[boundConn]
	cancel            context.CancelFunc                     // ends the dial and every connection it made
	closing           atomic.Bool                            // the link closes nc itself, so the disconnect is no outage
	refusal           atomic.Pointer[sinks.UnavailableError] // why: the server refused something that the link requires
	libraryClosed     chan struct{}                          // closed when the library has closed nc
	lameDuck          atomic.Bool                            // the server has announced that it is going to end
	connectedReported atomic.Bool                            // the library has called its connect handler for the current connection

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the state of the connection may have changed
}

// Dial starts to connect in a goroutine that ends when the library has tried each server once, or at Close; after that the
// library retries by itself. The reason why there is no connection is recorded in outage, which outlives the link.
func Dial(o Options, absence *Outage) *Link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{opts: o, outage: absence, lines: sentLines{known: &absence.lines}, cancel: cancel,
		dialled: make(chan struct{}), libraryClosed: make(chan struct{}), changed: make(chan struct{})}
	go func() {
		l.nc, l.err = l.dialServers(ctx)
		if l.err != nil {
			absence.setProblem(o.disconnectProblem(l.err))
		}
		close(l.dialled)
		if l.err == nil {
			l.watchServer(ctx)
		}
	}()
	return l
}

func (l *Link) dialServers(ctx context.Context) (*nats.Conn, error) {
	options, expired, err := l.opts.Authenticate()
	if err != nil {
		return nil, credentialError{err}
	}
	l.expired = expired
	nc, err := nats.Connect(l.opts.URL, slices.Concat(options, l.clientOptions(ctx), []nats.Option{markCredentialErrors})...)
	if err != nil { // of an option that reads a file: a connection that fails is retried
		return nil, credentialError{err}
	}
	l.inbox = nc.NewInbox() + "."
	if _, err := nc.Subscribe(l.inbox+">", l.dispatchAnswer); err != nil {
		nc.Close()
		return nil, fmt.Errorf("subscribe to the inbox: %w", err)
	}
	return nc, nil
}

// credentialError means that credentials cannot be read from their files.
type credentialError struct{ error }

func (e credentialError) Unwrap() error { return e.error }

// markCredentialErrors is an option that makes what the library reads for each connection fail with a credentialError.
func markCredentialErrors(o *nats.Options) error {
	o.TLSCertCB, o.RootCAsCB, o.UserJWT = markErrors(o.TLSCertCB), markErrors(o.RootCAsCB), markErrors(o.UserJWT)
	return nil
}

func markErrors[T any, Reader ~func() (T, error)](read Reader) Reader {
	if read == nil {
		return nil
	}
	return func() (T, error) {
		value, err := read()
		if err != nil {
			err = credentialError{err}
		}
		return value, err
	}
}

func (l *Link) clientOptions(ctx context.Context) []nats.Option {
	reportOutage := func(err error) { l.outage.setProblem(l.opts.disconnectProblem(err)) }
	return []nats.Option{
		nats.Name(connectionName),
		nats.SetCustomDialer(&dialer{ctx: ctx, current: &l.current, report: reportOutage}),
		nats.Timeout(maxPatience),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ReconnectBufSize(-1), // messages buffered until a reconnect would be sent after newer ones // I3
		nats.PingInterval(pingInterval),
		nats.FlusherTimeout(l.opts.Timeout), // bounds a write to a stalled server
		nats.CustomInboxPrefix(l.opts.InboxPrefix),
		nats.ConnectHandler(l.handleConnected),
		nats.ReconnectHandler(l.handleConnected),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { l.handleDisconnected(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { reportOutage(err) }),
		nats.ClosedHandler(l.handleClosed),
		nats.LameDuckModeHandler(func(*nats.Conn) { l.lameDuck.Store(true) }),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) { l.handleAsyncError(nc, err) }),
	}
}

// reconnectDelay returns the pause after the nth attempt at all servers: exponential up to a limit, half of it random.
func reconnectDelay(n int) time.Duration {
	limit := min(maxReconnectDelay, minReconnectDelay<<min(n, 10))
	return limit/2 + rand.N(limit/2)
}

// disconnectProblem describes why there is no connection.
func (o Options) disconnectProblem(err error) condition.Problem {
	peer := condition.Peer{Address: "nats.url", Settings: "nats.tls", Other: "set nats.tls.handshakeFirst"}
	if peer.Secure = o.HandshakeFirst; peer.Secure {
		peer.Other = "remove nats.tls.handshakeFirst"
	}
	switch {
	case err == nil:
		err = io.EOF
	case isRefused(err), errors.As(err, new(credentialError)):
		return condition.Problem{
			Code: condition.SinkUnauthorized, Cause: err.Error(), Remedy: "check nats.credentials, nats.nkeySeed, nats.user, nats.token and nats.tls",
		}
	case errors.Is(err, nats.ErrSecureConnWanted):
		peer.Secure, peer.Other, err = true, "write nats:// in nats.url and remove nats.tls, or turn TLS on there", tls.RecordHeaderError{Msg: "the server has none"}
	}
	return peer.Problem(err)
}

// isRefused reports whether the server refuses the credentials.
func isRefused(err error) bool {
	return slices.ContainsFunc([]error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired},
		func(refusal error) bool { return errors.Is(err, refusal) })
}

// Outage is the reason why there is no connection, and what was learned from lost ones. It outlives the links of one owner.
// Its zero value means that there was no connection yet. It is safe for concurrent use.
type Outage struct {
	lines controlLines

	mu      sync.Mutex
	known   bool
	problem condition.Problem // zero while there is a connection
}

func (a *Outage) setProblem(p condition.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.problem = true, p
}

// currentProblem returns the zero value while there is a connection.
func (a *Outage) currentProblem() condition.Problem {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		return condition.Problem{Code: condition.SinkUnreachable, Cause: "not connected yet"}
	}
	return a.problem
}

// nextChange returns a channel that is closed at the next change of the state of the connection.
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
	l.outage.setProblem(condition.Problem{})
	l.lameDuck.Store(false)
	l.connectedReported.Store(true)
	l.notifyChange()
}

// handleDisconnected fails all calls: their messages may be stored, and must be sent again.
func (l *Link) handleDisconnected(err error) {
	l.connectedReported.Store(false)
	if !l.closing.Load() {
		l.outage.setProblem(l.opts.disconnectProblem(err))
	}
	l.failAll("the connection to NATS was lost", err)
	l.notifyChange()
}

func (l *Link) handleClosed(*nats.Conn) {
	l.cancel()
	l.failAll("the connection to NATS was closed", nats.ErrConnectionClosed)
	l.notifyChange()
	close(l.libraryClosed)
}

// failAll fails all calls. If a refusal made the link close the connection, that is their error: it is the cause.
func (l *Link) failAll(reason string, err error) {
	follows := &sinks.UnavailableError{Code: condition.SinkUnreachable, Reason: reason, Err: err}
	l.failCalls("", cmp.Or(l.refusal.Load(), follows))
}

// Permission violations are text only, written by nats-server/v2 server/client.go (pubPermissionViolation and others), and
// do not identify the message.
var (
	publishViolation   = regexp.MustCompile(`(?i)violation for publish to "([^"]*)"`)
	subscribeViolation = regexp.MustCompile(`(?i)violation for subscription to "([^"]*)"`)
)

// subscriptionRefusal returns what an error of the library stands for, if the server refuses a subscription.
func subscriptionRefusal(err error, inbox string) *sinks.UnavailableError {
	m := subscribeViolation.FindStringSubmatch(err.Error())
	if m == nil {
		return nil
	}
	e := &sinks.UnavailableError{
		Code: condition.SinkUnauthorized, Reason: fmt.Sprintf("this user may not subscribe to %q", m[1]),
		Remedy: fmt.Sprintf("allow subscribing to %q on the server", m[1]), Err: err,
	}
	if strings.HasPrefix(m[1], inbox) {
		e.Reason = fmt.Sprintf("this user may not subscribe to its inbox %q", m[1])
		e.Remedy = "allow that on the server, or set nats.inboxPrefix"
	}
	return e
}

// handleAsyncError fails the calls that have sent to a subject that the server refuses. If it refuses a subscription,
// nothing can arrive there, and it does not retry that by itself: the link closes.
func (l *Link) handleAsyncError(nc *nats.Conn, err error) {
	if m := publishViolation.FindStringSubmatch(err.Error()); m != nil {
		l.failCalls(m[1], &DeniedError{Subject: m[1], Err: err})
	}
	if refusal := subscriptionRefusal(err, l.inbox); refusal != nil {
		l.refusal.Store(refusal)
		l.outage.setProblem(refusal.Problem())
		l.failCalls("", refusal)
		l.closing.Store(true)
		nc.Close()
	}
	if refusedControlLine.MatchString(err.Error()) { // the library closes the connection
		l.lines.recordRefusal()
	}
	if isRefused(err) {
		l.outage.setProblem(l.opts.disconnectProblem(err))
	}
}

// DeniedError means that the user may not publish to a subject. Other subjects may be allowed.
type DeniedError struct {
	Subject string
	Needs   string // covers all subjects that the user needs of this kind; "": Subject alone
	Err     error  // of the library
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("this user may not publish to %q; allow it on the server", e.Subject)
}

func (e *DeniedError) Unwrap() error { return e.Err }

// Problem is what the error stands for.
func (e *DeniedError) Problem() condition.Problem {
	return condition.Problem{
		Code: condition.SinkUnauthorized, Cause: fmt.Sprintf("this user may not publish to %q", e.Subject),
		Remedy: fmt.Sprintf("allow publishing to %q on the server", cmp.Or(e.Needs, e.Subject)),
	}
}

// dispatchAnswer passes an answer to its call. The reply subject is INBOX.<number> or INBOX.<number>.<more>.
func (l *Link) dispatchAnswer(m *nats.Msg) {
	call, reply, _ := strings.Cut(strings.TrimPrefix(m.Subject, l.inbox), ".")
	number, err := strconv.ParseUint(call, 10, 64)
	if err != nil {
		return // not an answer to a message of this link
	}
	const noResponders = "503" // ADR-4 and the no_responders option of the client protocol's CONNECT
	l.deliverAnswer(number, reply, Answer{Data: m.Data, Header: m.Header, NoResponders: len(m.Data) == 0 && m.Header.Get("Status") == noResponders})
}

// ReplySubject returns the reply subject of a call. A caller may append a dot and more tokens; OnAnswer receives them.
func (l *Link) ReplySubject(number uint64) string { return l.inbox + strconv.FormatUint(number, 10) }

// IsDead reports whether the link cannot come back. It closes a disconnected link if the credentials now contain another
// key.
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

// awaitConnected waits until the connection is established and the library has called its connect handler, which happens a
// little later: before that the sink would publish while its status is not connected. It fails when ctx ends or the link is
// dead.
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

// Close closes the connection and waits for the library, within ctx. Calls in progress fail.
func (l *Link) Close(ctx context.Context) error {
	l.closing.Store(true)
	select {
	case <-l.dialled:
	default:
		l.cancel() // there is no connection to close yet
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

const (
	// shortLine is the length up to which a line is accepted by every server that accepts the client's CONNECT.
	shortLine = 256
	// controlLineMemory is how long a length that a server refused is taken to be too long: the limit can be raised.
	controlLineMemory = 10 * time.Minute
)

// controlLines is what is known of the longest line of the protocol that the server accepts, max_control_line. The server
// does not announce it, and closes the connection with all that is in flight at a longer one. The line consists of subject,
// reply subject and sizes. It outlives the links of one owner. It is safe for concurrent use.
type controlLines struct {
	mu      sync.Mutex
	tooLong int       // length that was refused; 0: none
	learned time.Time // when tooLong was refused
}

// sentLines is the longest line that was sent over one link. It is certainly too long when the server has refused any of
// the link: the refused one is not longer. So each refusal blames a line that can never be accepted, and the refused one is
// found at last. Each link has its own, because the library may report a refusal when the next link is in use already.
type sentLines struct {
	known   *controlLines
	longest int // guarded by known.mu
}

// admitMessage returns a [sinks.RejectedError] if the server refuses the line of a message, and records its length else.
func (s *sentLines) admitMessage(m *nats.Msg) error {
	c := s.known
	if len(m.Subject)+len(m.Reply) <= shortLine {
		return nil
	}
	length := controlLineLength(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tooLong > 0 && time.Since(c.learned) > controlLineMemory {
		c.tooLong = 0
	}
	if c.tooLong > 0 && length >= c.tooLong {
		return &sinks.RejectedError{Reason: fmt.Sprintf("a subject of %d bytes and a reply subject of %d are too long for the server's "+
			"max_control_line; it has refused %d bytes, with the sizes", len(m.Subject), len(m.Reply), c.tooLong)}
	}
	s.longest = max(s.longest, length)
	return nil
}

// recordRefusal records that the server has closed the link because of a line.
func (s *sentLines) recordRefusal() {
	c := s.known
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.longest > 0 {
		c.tooLong, c.learned = s.longest, time.Now()
	}
}

// refusedControlLine matches the server's error (nats-server/v2 server/errors.go, ErrMaxControlLine).
var refusedControlLine = regexp.MustCompile(`(?i)maximum control line exceeded`)

// controlLineLength returns the length of the arguments of PUB or HPUB, which the server compares with its limit.
func controlLineLength(m *nats.Msg) int {
	length := len(m.Subject) + len(" ")
	if m.Reply != "" {
		length += len(m.Reply) + len(" ")
	}
	size := len(m.Data)
	if len(m.Header) > 0 {
		header := len("NATS/1.0\r\n\r\n")
		for name, values := range m.Header {
			for _, value := range values {
				header += len(name) + len(": ") + len(value) + len("\r\n")
			}
		}
		length += len(strconv.Itoa(header)) + len(" ")
		size += header
	}
	return length + len(strconv.Itoa(size))
}

// minPatience is how long a server may take to accept a connection, and then to send its first byte. Each server in a row
// that does not is followed by twice the patience with the next, up to maxPatience: a frozen server delays the connection
// to another one little, and a slow one is waited for at last.
const minPatience, maxPatience = time.Second, 5 * time.Second

// dialer makes connections that end with its context: Close then does not wait for a server that never answers.
type dialer struct {
	ctx     context.Context
	current *atomic.Pointer[boundConn] // the newest connection
	silent  atomic.Int32               // dials since a server has last sent something
	report  func(error)                // of a server that sends nothing: the library reports the first one only
}

// Dial implements the dialer of the client library.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	patience := d.nextPatience()
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	bound := &boundConn{Conn: sinks.DeferWriteErrors(conn), dialer: d}
	bound.release = context.AfterFunc(d.ctx, func() { conn.Close() })
	bound.silence = time.AfterFunc(patience, func() { bound.closeAs(errSilent) })
	d.current.Store(bound)
	return bound, nil
}

func (d *dialer) nextPatience() time.Duration {
	return min(minPatience<<min(d.silent.Add(1)-1, 3), maxPatience)
}

// boundConn is closed when the context of its dialer ends, and when the server sends nothing.
type boundConn struct {
	net.Conn
	dialer  *dialer
	release func() bool // detaches the connection from the context
	silence *time.Timer // closes the connection; until the first byte
	heard   atomic.Bool // the server has sent something
	cause   atomic.Pointer[error]
}

// Read implements [net.Conn]. Its error is that of closeAs, if there is one.
func (c *boundConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Swap(true) {
		c.silence.Stop()
		c.dialer.silent.Store(0)
	}
	if cause := c.cause.Load(); err != nil && cause != nil {
		err = *cause
	}
	if err != nil && !c.heard.Load() && c.dialer.ctx.Err() == nil {
		c.dialer.report(&condition.OpeningError{Err: err})
	}
	return n, err
}

// Close implements [net.Conn].
func (c *boundConn) Close() error {
	c.silence.Stop()
	c.release()
	return c.Conn.Close()
}

// closeAs closes the connection, and lets the library read this error.
func (c *boundConn) closeAs(cause error) {
	c.cause.Store(&cause)
	_ = c.Conn.Close()
}

const (
	// pingPause is the time between two pings of a server, and silenceLimit how long it may be silent after one before the
	// connection moves to another server of its cluster.
	pingPause, silenceLimit = time.Second, 2 * time.Second
)

// errSilent is why the link has closed a connection.
var errSilent = fmt.Errorf("the server does not answer: %w", os.ErrDeadlineExceeded)

// watchServer moves the connection to another server when the present one is silent: it may be frozen, and the library waits
// half a minute for it. Where no other server is known there is nothing to move to. It returns when ctx ends.
func (l *Link) watchServer(ctx context.Context) {
	ticker := time.NewTicker(pingPause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if conn := l.current.Load(); conn != nil && l.nc.IsConnected() && len(l.nc.Servers()) > 1 && l.isSilent(ctx) {
			conn.closeAs(errSilent)
		}
	}
}

// isSilent pings the server and reports whether neither the answer comes nor anything else. A ping waits behind what was
// published before, so answers to that count as well.
func (l *Link) isSilent(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, silenceLimit)
	defer cancel()
	received := l.nc.Stats().InMsgs
	err := l.nc.FlushWithContext(limited)
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && l.nc.Stats().InMsgs == received
}
