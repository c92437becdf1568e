package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// connector holds the one link of a sink and dials another when the link cannot come back. It is safe for concurrent use.
type connector struct {
	cfg    Config
	outage connection.Outage

	mu     sync.Mutex
	link   *connection.Link // nil before the first use
	closed bool
}

var errClosed = errors.New("the sink is closed")

// connectedLink returns a link with an established connection. It waits no longer than ackTimeout.
func (c *connector) connectedLink(ctx context.Context) (*connection.Link, error) {
	l, err := c.currentLink()
	if err != nil {
		return nil, err
	}
	return l, l.WaitConnected(ctx)
}

// currentLink returns the link, or dials a new one if there is none or the library has given the old one up. A ping may
// come after the end of the sink.
func (c *connector) currentLink() (*connection.Link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if c.link == nil || c.link.IsDead() {
		c.link = c.dialLink()
	}
	return c.link, nil
}

// dialLink starts to connect in the background.
func (c *connector) dialLink() *connection.Link {
	return connection.Dial(connection.Options{URL: c.cfg.URL, Servers: c.cfg.serverHosts(), InboxPrefix: c.cfg.InboxPrefix,
		Timeout:        c.cfg.AckTimeout,
		HandshakeFirst: c.cfg.TLS.HandshakeFirst, Authenticate: c.cfg.authOptions}, &c.outage)
}

// closeLink ends the connection, if there is one, within ctx.
func (c *connector) closeLink(ctx context.Context) error {
	c.mu.Lock()
	l := c.link
	c.closed = true
	c.mu.Unlock()
	if l == nil {
		return nil
	}
	if err := l.Close(ctx); err != nil {
		return fmt.Errorf("close the connection to NATS: %w", err)
	}
	return nil
}

// authOptions returns the client options that authenticate the connection. The files are read here and by the library, so
// the errors depend on the environment and may be transient. expired is nil, or reports whether the seed file holds another
// nkey by now.
func (c Config) authOptions() (options []nats.Option, expired func() bool, err error) {
	if c.Credentials != "" {
		options = append(options, nats.UserCredentials(c.Credentials))
	}
	if c.NkeySeed != "" {
		option, err := nats.NkeyOptionFromSeed(c.NkeySeed)
		if err != nil {
			return nil, nil, fmt.Errorf("nats.nkeySeed: %w", err)
		}
		options, expired = append(options, option), nkeyChanged(option, c.NkeySeed)
	}
	if c.User != "" {
		options = append(options, nats.UserInfo(c.User, c.Password))
	}
	if c.Token != "" {
		options = append(options, nats.Token(c.Token))
	}
	if c.TLS.CA != "" {
		options = append(options, nats.RootCAs(c.TLS.CA))
	}
	if c.TLS.Cert != "" {
		options = append(options, nats.ClientCert(c.TLS.Cert, c.TLS.Key))
	}
	if c.TLS.HandshakeFirst {
		options = append(options, nats.Secure(), nats.TLSHandshakeFirst())
	}
	return options, expired, nil
}

// nkeyChanged returns a function that reports whether the seed file holds another key than option. The library reads the
// seed at each connect, but sets the public key that it announces only once.
func nkeyChanged(option nats.Option, seed string) func() bool {
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

// Topics of warnings; the newest warning of a topic replaces the one before.
const (
	topicRetention  = "forgets"
	topicSubjects   = "subjects"
	topicVersions   = "versions"
	topicDuplicates = "duplicates"
	topicWriters    = "writers"
	topicFence      = "fence"
)

// warnings are the ways in which the stream may lose changes or is used with weaker guarantees. They are safe for concurrent
// use.
type warnings struct {
	log *slog.Logger

	mu     sync.Mutex
	topics map[string]*condition.Condition
}

// setWarning sets the warning of a topic; "" removes it.
func (w *warnings) setWarning(topic, text string) {
	p := condition.Problem{}
	if text != "" {
		p = condition.Problem{Code: condition.SinkMayLose, Cause: text}
	}
	w.topic(topic).Update(p)
}

func (w *warnings) topic(name string) *condition.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.topics[name] == nil {
		w.topics[name] = condition.New(w.log, "", condition.Problem{})
	}
	return w.topics[name]
}

// conditions returns the status of each topic.
func (w *warnings) conditions() (all []condition.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(w.topics)) {
		all = append(all, w.topics[name].Status())
	}
	return all
}
