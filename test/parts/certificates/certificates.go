package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates for 127.0.0.1.
type Authority struct {
	PEM  []byte // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority that lasts for an hour.
func New(t testing.TB) *Authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert: cert, key: key}
}

// Issue returns a new certificate, for servers and clients alike, and its key, as PEM.
func (a *Authority) Issue(t testing.TB) (cert, key []byte) {
	t.Helper()
	return a.IssueFor(t, "test")
}

// IssueFor is Issue for someone of that name.
func (a *Authority) IssueFor(t testing.TB, name string) (cert, key []byte) {
	t.Helper()
	return a.IssueWithin(t, name, time.Time{}, time.Now().Add(time.Hour))
}

// IssueWithin is IssueFor of a certificate that is valid from one moment to another.
func (a *Authority) IssueWithin(t testing.TB, name string, from, to time.Time) (cert, key []byte) {
	t.Helper()
	return a.issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
}

// IssueForHost is Issue for a server with another name than 127.0.0.1.
func (a *Authority) IssueForHost(t testing.TB, host string) (cert, key []byte) {
	t.Helper()
	return a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: host}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{host}})
}

func (a *Authority) issue(t testing.TB, template *x509.Certificate) (cert, key []byte) {
	t.Helper()
	template.SerialNumber, template.KeyUsage = big.NewInt(2), x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// IssueTo writes the authority's certificate and a new one with its key into dir, as ca.pem, cert.pem and key.pem, over what
// is there.
func (a *Authority) IssueTo(t testing.TB, dir string) {
	t.Helper()
	cert, key := a.Issue(t)
	for name, content := range map[string][]byte{"ca.pem": a.PEM, "cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Server returns the configuration of a server with a certificate of the authority, for clients that have one, too.
func (a *Authority) Server(t testing.TB) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(a.Issue(t))
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(a.cert)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert}
}
