package nats

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// dialLink begins to connect.
func (s *Sink) dialLink() *connection.Link {
	return connection.Dial(connection.Options{URL: s.cfg.URL, Servers: s.cfg.serverHosts(), InboxPrefix: s.cfg.InboxPrefix,
		Timeout: s.cfg.AckTimeout, Authenticate: s.cfg.authOptions}, &s.outage)
}

// authOptions returns the options by which the connection says who we are. Files are read here and by the library, so their
// errors are the environment's and may pass. expired is nil, or says whether the file has another nkey by now.
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
	return options, expired, nil
}

// nkeyChanged returns a function that says whether the seed file holds another key than option has. The library reads the seed
// at each connect, but the key it announces only once.
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
