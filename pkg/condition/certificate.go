package condition

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"time"
)

// CertificateProblem returns the problem of a TLS client whose connection failed for a certificate: the server's one is not
// valid, or the server refuses the client's one. It has no code. settings names what configures the client, such as
// "kafka.tls". The zero value means that err has another reason.
func CertificateProblem(err error, settings string) (p Problem) {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var other *tls.CertificateVerificationError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(invalid.Cert.NotBefore):
		p.Cause = "the server's certificate is not yet valid: it is from " + formatDate(invalid.Cert.NotBefore)
		p.Remedy = "compare the clocks of this machine and of the one that issued the certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		p.Cause = "the server's certificate has expired: it was valid until " + formatDate(invalid.Cert.NotAfter)
		p.Remedy = "renew the server's certificate"
	case errors.As(err, &unknown):
		p.Cause = "the server's certificate is not trusted: " + unknown.Error()
		p.Remedy = "check that this is the right server; then add the authority that issued its certificate to " + settings
	case errors.As(err, &host):
		p.Cause = "the server's certificate has another name: " + host.Error()
		p.Remedy = "use an address with a name of the certificate, or issue a certificate for this one"
	case errors.As(err, &other):
		p.Cause = "the server's certificate is not valid: " + other.Err.Error()
		p.Remedy = "issue another certificate for the server"
	case certificateAlert(err) != "":
		p.Cause = "the server refuses the client certificate: " + certificateAlert(err)
		p.Remedy = "check the client certificate in " + settings + ": its dates, and that the server trusts its authority"
	}
	return p
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
