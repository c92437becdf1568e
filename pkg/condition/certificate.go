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
func CertificateProblem(err error, settings string) Problem {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var other *tls.CertificateVerificationError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(invalid.Cert.NotBefore):
		return Problem{
			Cause:  "the server's certificate is not yet valid: it is from " + formatDate(invalid.Cert.NotBefore),
			Remedy: "compare the clocks of this machine and of the one that issued the certificate",
		}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Problem{
			Cause:  "the server's certificate has expired: it was valid until " + formatDate(invalid.Cert.NotAfter),
			Remedy: "renew the server's certificate",
		}
	case errors.As(err, &unknown):
		return Problem{
			Cause:  "the server's certificate is not trusted: " + unknown.Error(),
			Remedy: "check that this is the right server; then add the authority that issued its certificate to " + settings,
		}
	case errors.As(err, &host):
		return Problem{
			Cause:  "the server's certificate has another name: " + host.Error(),
			Remedy: "use an address with a name of the certificate, or issue a certificate for this one",
		}
	case errors.As(err, &other):
		return Problem{Cause: "the server's certificate is not valid: " + other.Err.Error(), Remedy: "issue another certificate for the server"}
	case refusesCertificate(err):
		return Problem{
			Cause:  "the server refuses the client certificate: " + tlsAlert(err),
			Remedy: "check the client certificate in " + settings + ": its dates, and that the server trusts its authority",
		}
	}
	return Problem{}
}

func formatDate(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// certificateAlerts are the alerts of RFC 8446, section 6.2, with which a server refuses a client's certificate, or the lack
// of one: bad_certificate, unsupported_certificate, certificate_revoked, certificate_expired, certificate_unknown,
// unknown_ca, access_denied and certificate_required.
var certificateAlerts = []tls.AlertError{42, 43, 44, 45, 46, 48, 49, 116}

// refusesCertificate reports whether the server answered with such an alert. crypto/tls does not export the type of an alert
// that was received, but its text is that of the [tls.AlertError].
func refusesCertificate(err error) bool {
	return slices.ContainsFunc(certificateAlerts, func(a tls.AlertError) bool { return a.Error() == tlsAlert(err) })
}

// tlsAlert returns the text of the alert that a server answered with; "" if it did not.
func tlsAlert(err error) string {
	var network *net.OpError
	if errors.As(err, &network) && network.Op == "remote error" {
		return network.Err.Error()
	}
	return ""
}
