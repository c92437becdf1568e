package condition

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"syscall"
	"time"
)

// Peer is what a client connects to, as the texts of a failed connection name its settings.
type Peer struct {
	Address   string // what has the address: "kafka.brokers"
	Settings  string // what has the certificates: "kafka.tls"
	Secure    bool   // the client begins with TLS
	Other     string // how to begin otherwise, with TLS or without: "set kafka.tls.enabled"
	APIServer bool   // the codes are those of the API server, not those of a sink
}

// OpeningError is the error of a connection over which the peer has sent nothing that this side understands.
type OpeningError struct{ Err error }

func (e *OpeningError) Error() string { return e.Err.Error() }
func (e *OpeningError) Unwrap() error { return e.Err }

// Problem returns why a connection failed: what the dialer, the handshake or the protocol said last, and who can mend it.
func (p Peer) Problem(err error) Problem {
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "proxyconnect" {
		found := p.Problem(network.Err)
		found.Cause = "the proxy on the way: " + found.Cause
		return found
	}
	found := p.certificateProblem(err)
	if found.Cause == "" {
		found = p.networkProblem(err)
	}
	if p.APIServer {
		found.Code = map[Code]Code{
			SinkCertificate: CertificateRefused, SinkUnreachable: APIServerUnreachable, SinkTimeout: APIServerUnreachable,
		}[found.Code]
	}
	return found
}

// networkProblem is Problem for anything but certificates.
func (p Peer) networkProblem(err error) Problem {
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	network, isNetwork := errors.AsType[*net.OpError](err)
	unreachable := func(cause, remedy string) Problem {
		return Problem{Code: SinkUnreachable, Cause: cause, Remedy: remedy}
	}
	switch onPath := "check the address in " + p.Address + ", and firewalls and network policies on the way to it"; {
	case isLookup:
		return unreachable(fmt.Sprintf("the name %q is not found: %s", lookup.Name, lookup.Err), "correct the name in "+p.Address+", or mend the DNS")
	case errors.Is(err, syscall.ECONNREFUSED):
		return unreachable("connection refused"+addressOf(network), "start it, or correct the port in "+p.Address)
	case isNetwork && network.Op == "dial" && isTimeout(err):
		return unreachable("no answer to the attempt to connect"+addressOf(network)+": i/o timeout", onPath)
	case isNetwork && network.Op == "dial":
		reason := network.Err.Error()
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			reason = errno.Error()
		}
		return unreachable(reason+addressOf(network), onPath)
	case errors.As(err, new(tls.RecordHeaderError)), errors.Is(err, http.ErrSchemeMismatch):
		side := "the server expects it"
		if p.Secure {
			side = "the server answers without it"
		}
		return unreachable("TLS is on on one side only, "+side+": "+innermost(err), p.Other+"; or correct the port in "+p.Address)
	case isNetwork && network.Op == "remote error":
		return unreachable("the server ends the TLS handshake: "+network.Err.Error(),
			"compare the versions of TLS and the ciphers of both sides, and whether the server requires a client certificate in "+p.Settings)
	case isTimeout(err):
		return Problem{Code: SinkTimeout, Cause: "connections are accepted and not answered",
			Remedy: "look at its load and at a proxy before it; " + p.otherwise()}
	case isClosed(err) && errors.As(err, new(*OpeningError)):
		return unreachable("it closes the connection before its first answer, as a port does that "+p.mismatch(), p.otherwise()+"; else see its log")
	case isClosed(err):
		return unreachable("it has closed the connection", "see that it runs, and its log; "+p.otherwise())
	}
	return unreachable(innermost(err), "")
}

// mismatch says what a server expects that does not understand the client.
func (p Peer) mismatch() string {
	if p.Secure {
		return "has no TLS"
	}
	return "expects TLS"
}

func (p Peer) otherwise() string { return "if its port " + p.mismatch() + ", " + p.Other }

// addressOf returns the address that a dial was for, after a blank; the dialer has taken it from a name.
func addressOf(e *net.OpError) string {
	if e == nil || e.Addr == nil {
		return ""
	}
	return " at " + e.Addr.String()
}

func isTimeout(err error) bool {
	network, ok := errors.AsType[net.Error](err)
	return ok && network.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

func isClosed(err error) bool {
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED},
		func(closed error) bool { return errors.Is(err, closed) })
}

// innermost returns the text of an error without the URL of the request, which may hold a secret.
func innermost(err error) string {
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err
	}
	if network, ok := errors.AsType[*net.OpError](err); ok {
		return network.Op + ": " + network.Err.Error()
	}
	return err.Error()
}

// certificateProblem returns the problem of a TLS client whose connection failed for a certificate: the server's one is not
// valid, or the server refuses the client's one. The zero value means that err has another reason.
func (p Peer) certificateProblem(err error) Problem {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var other *tls.CertificateVerificationError
	refused := func(cause, remedy string) Problem {
		return Problem{Code: SinkCertificate, Cause: cause, Remedy: remedy}
	}
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(invalid.Cert.NotBefore):
		return refused("the server's certificate is not yet valid: it is from "+formatDate(invalid.Cert.NotBefore),
			"compare the clocks of this machine and of the one that issued the certificate")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return refused("the server's certificate has expired: it was valid until "+formatDate(invalid.Cert.NotAfter),
			"renew the server's certificate")
	case errors.As(err, &unknown):
		return refused("the server's certificate is not trusted: "+unknown.Error(),
			"check that this is the right server; then add the authority that issued its certificate to "+p.Settings)
	case errors.As(err, &host):
		return refused("the server's certificate has another name: "+host.Error(),
			"use an address with a name of the certificate, or issue a certificate for this one")
	case errors.As(err, &other):
		return refused("the server's certificate is not valid: "+other.Err.Error(), "issue another certificate for the server")
	case certificateAlert(err) != "":
		return refused("the server refuses the client certificate: "+certificateAlert(err),
			"check the client certificate in "+p.Settings+": its dates, and that the server trusts its authority")
	}
	return Problem{}
}
func formatDate(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// certificateAlerts are the alerts of RFC 8446, section 6.2, with which a server refuses a client's certificate, or the lack
// of one: bad_certificate, unsupported_certificate, certificate_revoked, certificate_expired, certificate_unknown,
// unknown_ca, access_denied and certificate_required.
var certificateAlerts = []tls.AlertError{42, 43, 44, 45, 46, 48, 49, 116}

// certificateAlert returns the text of such an alert, if the server answered with one. crypto/tls does not export the type
// of an alert that was received, but its text is that of the [tls.AlertError].
func certificateAlert(err error) string {
	network, ok := errors.AsType[*net.OpError](err)
	if !ok || network.Op != "remote error" ||
		!slices.ContainsFunc(certificateAlerts, func(a tls.AlertError) bool { return a.Error() == network.Err.Error() }) {
		return ""
	}
	return network.Err.Error()
}
