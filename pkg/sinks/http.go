package sinks

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
)

const (
	dialTimeout      = 5 * time.Second
	idleTimeout      = 90 * time.Second
	maxResponseBytes = 64 << 10 // of the headers
)

// DialFunc opens a connection. Its errors are a [condition.OpeningError]: nothing was sent.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// NewHTTPClient returns a client that connects to the configured hosts only, follows no redirect, and keeps so many idle
// connections; below 0 none. Files of TLS are those at key, and read for each connection.
func NewHTTPClient(files credentials.TLS, key string, idle int) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            Dial,
			DialTLSContext:         TLSDialer(files, key),
			MaxIdleConnsPerHost:    idle,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxResponseBytes,
		},
	}
}

// Dial is the [DialFunc] without TLS.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		err = &condition.OpeningError{Err: err}
	}
	return conn, err
}

// TLSDialer returns a [DialFunc] with TLS and the current contents of the files.
func TLSDialer(files credentials.TLS, key string) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, &condition.OpeningError{Err: err}
		}
		config, err := files.ClientConfig(key, host)
		if err != nil {
			return nil, &condition.OpeningError{Err: err}
		}
		raw, err := Dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(DeferWriteErrors(raw), config)
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close() // err is the cause
			return nil, &condition.OpeningError{Err: err}
		}
		return secure, nil
	}
}
