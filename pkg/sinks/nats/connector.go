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
	"github.com/nats-io/nkeys"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
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

// connectedLink returns a link with an established connection, see [connection.Link.WaitConnected].
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
		c.link = connection.Dial(connection.Options{URL: c.cfg.URL, Servers: c.cfg.serverHosts(), InboxPrefix: c.cfg.InboxPrefix,
			Timeout: c.cfg.AckTimeout, HandshakeFirst: c.cfg.TLS.HandshakeFirst, Authenticate: c.cfg.authOptions}, &c.outage)
	}
	return c.link, nil
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

// authOptions returns the client options that authenticate the connection. Secrets in files are read here, and again by the
// library at each connect, so the errors depend on the environment and may be transient. expired is nil, or reports whether
// the seed is that of another nkey by now.
func (c Config) authOptions() (options []nats.Option, expired func() bool, err error) {
	none := credentials.Secret{}
	switch {
	case c.Credentials.Path() != "":
		options = append(options, nats.UserCredentials(c.Credentials.Path()))
	case c.Credentials != none:
		text, _ := c.Credentials.Read()
		options = append(options, nats.UserCredentialBytes([]byte(text)))
	case c.NkeySeed != none:
		announced, err := c.publicNkey()
		if err != nil {
			return nil, nil, err
		}
		options = append(options, nats.Nkey(announced, c.signWithNkey))
		expired = func() bool { // the library announces the public key of the first connect for ever
			now, err := c.publicNkey()
			return err == nil && now != announced
		}
	case c.User != "":
		password, err := newCurrentSecret(c.Password, "nats.password")
		if err != nil {
			return nil, nil, err
		}
		options = append(options, nats.UserInfoHandler(func() (string, string) { return c.User, password() }))
	case c.Token != none:
		token, err := newCurrentSecret(c.Token, "nats.token")
		if err != nil {
			return nil, nil, err
		}
		options = append(options, nats.TokenHandler(token))
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

// newCurrentSecret returns a function that reads a secret; if it cannot be read any more, the text before.
func newCurrentSecret(s credentials.Secret, key string) (func() string, error) {
	last, err := s.Read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return func() string { // called by one goroutine at a time
		if text, err := s.Read(); err == nil {
			last = text
		}
		return last
	}, nil
}

// readNkey returns the key pair of the seed as it is now.
func (c Config) readNkey() (nkeys.KeyPair, error) {
	seed, err := c.NkeySeed.Read()
	if err != nil {
		return nil, fmt.Errorf("nats.nkeySeed: %w", err)
	}
	pair, err := nkeys.ParseDecoratedNKey([]byte(seed))
	if err != nil {
		return nil, errors.New("nats.nkeySeed: it is no seed of a user nkey") // the library's error may quote it
	}
	return pair, nil
}

func (c Config) publicNkey() (string, error) {
	pair, err := c.readNkey()
	if err != nil {
		return "", err
	}
	return pair.PublicKey()
}

// signWithNkey implements [nats.SignatureHandler].
func (c Config) signWithNkey(nonce []byte) ([]byte, error) {
	pair, err := c.readNkey()
	if err != nil {
		return nil, err
	}
	defer pair.Wipe()
	return pair.Sign(nonce)
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

func (w *warnings) conditions() (all []condition.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(w.topics)) {
		all = append(all, w.topics[name].Status())
	}
	return all
}
