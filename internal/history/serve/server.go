package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/port"
)

// server serves a state on loopback, to clients with its kubeconfig.
type server struct {
	state       *State
	address     string
	token       string
	certificate tls.Certificate
}

// Run serves a state on a free port of 127.0.0.1, with a certificate and a token of its own, until ctx ends, which is no
// error. It calls started when it has written the kubeconfig to a file, which it removes at the end. An error of started
// ends it too.
func Run(ctx context.Context, state *State, kubeconfig string, started func(context.Context) error) error {
	certificate, err := newCertificate()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return exit.With(exit.Environment, err)
	}
	s := &server{state, l.Addr().String(), rand.Text(), certificate}
	remove, err := s.writeKubeconfig(kubeconfig)
	if err != nil {
		return exit.With(exit.Environment, errors.Join(err, l.Close()))
	}
	ctx, stop := context.WithCancel(ctx)
	var playing sync.WaitGroup
	var failed error
	playing.Go(func() {
		if failed = started(ctx); failed != nil {
			stop()
		}
	})
	web := &http.Server{
		Handler:   s,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // of clients
	}
	err = port.New(s.address, slog.New(slog.DiscardHandler)).Serve(ctx, l, web)
	stop()
	playing.Wait()
	return errors.Join(failed, err, remove())
}

// newCertificate makes a certificate that signs itself. A kubeconfig's token is sent over TLS only.
func newCertificate() (c tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "exporter history serve"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// ServeHTTP passes on requests with the token. A page in a browser that has another name for this address has none.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case r.Host != s.address:
		writeError(w, fail(http.StatusForbidden, metav1.StatusReasonForbidden, "ask "+s.address+", and no other host"))
	case subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1:
		writeError(w, fail(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "the token is not that of the kubeconfig which 'exporter history serve' wrote"))
	default:
		port.Prove(r.Context())
		s.state.latest.Load().ServeHTTP(w, r)
	}
}

// mark is the first line of a kubeconfig of this package.
const mark = "# Written by 'exporter history serve', which removes it at its end.\n"

const kubeconfig = mark + `apiVersion: v1
kind: Config
current-context: history
contexts: [{name: history, context: {cluster: history, user: history}}]
users: [{name: history, user: {token: %s}}]
clusters: [{name: history, cluster: {server: "https://%s", certificate-authority-data: %s}}]
`

// writeKubeconfig writes the kubeconfig of the server to a file that only this user can read, and returns what removes it.
// A file that something else wrote is left as it is, and an error.
func (s *server) writeKubeconfig(path string) (remove func() error, err error) {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.certificate.Certificate[0]})
	text := fmt.Sprintf(kubeconfig, s.token, s.address, base64.StdEncoding.EncodeToString(ca))
	found, err := os.ReadFile(path)
	if err == nil && !strings.HasPrefix(string(found), mark) {
		err = fmt.Errorf("%s is there, and not of 'exporter history serve': name another file with --kubeconfig", path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if found != nil { // of one that was killed: with its mode
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return func() error {
		if found, _ := os.ReadFile(path); string(found) != text { // it is gone, or of another one
			return nil
		}
		return os.Remove(path)
	}, nil
}
