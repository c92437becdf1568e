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

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// Dialer configures connections to brokers. It is not changed while it is used.
type Dialer struct {
	ClientID  string
	TLS       auth.TLS
	Mechanism sasl.Mechanism // nil: none
	// Timeout bounds how long establishing a session takes, and then how long the broker takes for each answer since the last
	// one.
	Timeout time.Duration
	// DialContext opens a network connection.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Throttle holds the throttle time of a broker (KIP-219), which connections under one quota share. It is safe for concurrent
// use.
type Throttle interface {
	// RecordThrottle records the throttle time of an answer, which is above zero.
	RecordThrottle(wait time.Duration)
	// Remaining returns how long the broker will not read requests.
	Remaining() time.Duration
	// WaitUntilReady returns when the broker reads requests, or ctx ends.
	WaitUntilReady(ctx context.Context) error
}

// session is an established connection, and the API versions to use.
type session struct {
	*kproto.Conn
	versions map[kproto.ApiKey]int16
	newest   map[kproto.ApiKey]int16 // that the broker has, which kafka-go may not have
	renewAt  time.Time               // when to authenticate again, before the broker ends the session
}

// unlimited is the lifetime of a session that the broker does not end.
const unlimited = 1 << 62 * time.Nanosecond

// openSession connects and authenticates within the timeout.
func (d *Dialer) openSession(ctx context.Context, address string) (_ *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	dialing, stop := context.WithTimeout(ctx, d.Timeout/2) // so that an address that is not there is not taken for a silent broker
	defer stop()
	raw, err := d.DialContext(dialing, "tcp", address)
	if err != nil {
		return nil, err
	}
	interrupt := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) }) // in the past: pending reads and writes fail
	s, err := d.startSession(ctx, raw, address)
	if !interrupt() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close() // err is the cause
		return nil, &condition.OpeningError{Err: err}
	}
	return s, nil
}

// startSession does the TLS handshake, negotiates API versions and authenticates.
func (d *Dialer) startSession(ctx context.Context, raw net.Conn, address string) (*session, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if d.TLS.Enabled {
		config, err := d.TLS.ClientConfig(host) // reads the files again
		if err != nil {
			return nil, &auth.CredentialError{Err: err}
		}
		secure := tls.Client(sinks.DeferWriteErrors(raw), config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		raw = secure
	}
	s := &session{kproto.NewConn(raw, d.ClientID), map[kproto.ApiKey]int16{}, map[kproto.ApiKey]int16{}, time.Now().Add(unlimited)}
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
		s.versions[key], s.newest[key] = key.SelectVersion(r.MinVersion, r.MaxVersion), r.MaxVersion
	}
	s.SetVersions(s.versions)
	if d.Mechanism == nil {
		return s, nil
	}
	return s, d.authenticate(ctx, s, address)
}

// renewSession authenticates again within the timeout. Nothing else uses the session meanwhile.
func (d *Dialer) renewSession(ctx context.Context, s *session, address string) error {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	if err := s.SetDeadline(time.Now().Add(d.Timeout)); err != nil {
		return err
	}
	return d.authenticate(ctx, s, address)
}

// authenticate does the SASL exchange, and sets when it has to be repeated.
func (d *Dialer) authenticate(ctx context.Context, s *session, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	ctx = sasl.WithMetadata(ctx, &sasl.Metadata{Host: host, Port: number})
	answer, err := s.RoundTrip(&saslhandshake.Request{Mechanism: d.Mechanism.Name()})
	if err != nil {
		return err
	}
	if err := protocol.CodeError(answer.(*saslhandshake.Response).ErrorCode, ""); err != nil {
		return err
	}
	startedAt, lifetime := time.Now(), int64(0)
	state, token, err := d.Mechanism.Start(ctx)
	for done := false; err == nil && !done; {
		answer, err = s.RoundTrip(&saslauthenticate.Request{AuthBytes: token})
		if errors.Is(err, io.EOF) { // older brokers close the connection instead of answering
			return kafka.SASLAuthenticationFailed
		}
		if err != nil {
			return err
		}
		r := answer.(*saslauthenticate.Response)
		if err := protocol.CodeError(r.ErrorCode, r.ErrorMessage); err != nil {
			return err
		}
		lifetime = r.SessionLifetimeMs
		done, token, err = state.Next(ctx, r.AuthBytes)
	}
	if s.renewAt = startedAt.Add(unlimited); lifetime > 0 {
		s.renewAt = startedAt.Add(time.Duration(lifetime) * time.Millisecond / 10 * 9)
	}
	return err
}
