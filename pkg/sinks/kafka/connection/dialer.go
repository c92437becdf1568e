package connection

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// Dialer says how to connect to brokers. It is not changed while it is used.
type Dialer struct {
	ClientID  string
	TLS       auth.TLS
	Mechanism sasl.Mechanism // nil: none
	// Timeout bounds how long a broker takes to let us in, and then how long it takes for each answer since the one before.
	Timeout time.Duration
	// DialContext opens a network connection.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Throttle knows the throttle times of all brokers.
	Throttle Throttle
}

// Throttle knows for how long brokers do not listen. It is safe for concurrent use.
type Throttle interface {
	// RecordThrottle notes the throttle time of an answer.
	RecordThrottle(address string, wait time.Duration)
	// Remaining is for how long a broker does not listen yet.
	Remaining(address string) time.Duration
	// WaitUntilReady returns when the broker listens, or ctx ends.
	WaitUntilReady(ctx context.Context, address string) error
}

// session is an open connection, and the requests that the broker knows.
type session struct {
	*kproto.Conn
	versions map[kproto.ApiKey]int16
}

// openSession connects to a broker that lets us in.
func (d *Dialer) openSession(ctx context.Context, address string) (_ *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	interrupt := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) }) // the past: what waits fails at once
	s, err := d.startSession(ctx, raw, address)
	if !interrupt() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close() // the error before says more
		return nil, err
	}
	return s, nil
}

// startSession does what comes before the first request.
func (d *Dialer) startSession(ctx context.Context, raw net.Conn, address string) (*session, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if d.TLS.Enabled {
		config, err := d.TLS.ClientConfig(host) // reads the files again
		if err != nil {
			return nil, &auth.CredentialError{Err: err}
		}
		secure := tls.Client(raw, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		raw = secure
	}
	s := &session{kproto.NewConn(raw, d.ClientID), map[kproto.ApiKey]int16{}}
	answer, err := s.RoundTrip(&apiversions.Request{})
	if err != nil {
		return nil, err
	}
	offered := answer.(*apiversions.Response)
	if err := protocol.CodeError(offered.ErrorCode, ""); err != nil {
		return nil, fmt.Errorf("asking for API versions: %w", err)
	}
	for _, r := range offered.ApiKeys {
		key := kproto.ApiKey(r.ApiKey)
		s.versions[key] = key.SelectVersion(r.MinVersion, r.MaxVersion)
	}
	s.SetVersions(s.versions)
	if d.Mechanism == nil {
		return s, nil
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	return s, d.authenticate(sasl.WithMetadata(ctx, &sasl.Metadata{Host: host, Port: number}), s)
}

func (d *Dialer) authenticate(ctx context.Context, s *session) error {
	answer, err := s.RoundTrip(&saslhandshake.Request{Mechanism: d.Mechanism.Name()})
	if err != nil {
		return err
	}
	if err := protocol.CodeError(answer.(*saslhandshake.Response).ErrorCode, ""); err != nil {
		return err
	}
	state, token, err := d.Mechanism.Start(ctx)
	for done := false; err == nil && !done; {
		answer, err = s.RoundTrip(&saslauthenticate.Request{AuthBytes: token})
		if errors.Is(err, io.EOF) { // how brokers without words say no
			return kafka.SASLAuthenticationFailed
		}
		if err != nil {
			return err
		}
		r := answer.(*saslauthenticate.Response)
		if err := protocol.CodeError(r.ErrorCode, r.ErrorMessage); err != nil {
			return err
		}
		done, token, err = state.Next(ctx, r.AuthBytes)
	}
	return err
}
