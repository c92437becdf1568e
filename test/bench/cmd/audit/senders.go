package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/ports"
)

const (
	batch     = 400 // events of a request, the most that an API server sends
	filler    = 1100
	stalled   = 40 // connections of each kind
	reconnect = 100 * time.Millisecond
	apiServer = "kube-apiserver"
)

// senders send audit events to an exporter as API servers do, or worse.
type senders struct {
	dir, address string
	config       *tls.Config
	answered     atomic.Int64 // events that were taken
}

// newSenders makes one certificate for both sides, which is its own authority, below dir.
func newSenders(dir string) (*senders, error) {
	free, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	description := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: apiServer}, NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, description, description, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
	}
	own, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(own)
	return &senders{
		dir: dir, address: ports.Address(free[0]),
		config: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
	}, nil
}

// settings are those of the exporter that is sent to.
func (s *senders) settings() string {
	certificate, key := filepath.Join(s.dir, "tls.crt"), filepath.Join(s.dir, "tls.key")
	return fmt.Sprintf("audit:\n  webhook: {listen: %q, certificate: %q, key: %q, clientCA: %q, clients: [%s]}\n", s.address, certificate, key, certificate, apiServer)
}

// body is a list of events that may each name an author, so that each is stored, with space for a number in each.
func body() (text []byte, numbers []int) {
	const mark = "NUMBER-NUMBER-NUMBER"
	event := `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"` + mark + `","stage":"ResponseComplete","verb":"patch",` +
		`"user":{"username":"system:serviceaccount:shop:operator","groups":["system:serviceaccounts","system:authenticated"]},"sourceIPs":["192.0.2.7"],` +
		`"objectRef":{"resource":"configmaps","namespace":"shop","name":"db"},"responseStatus":{"code":200},"responseObject":{"kind":"ConfigMap","metadata":` +
		`{"uid":"` + mark + `","resourceVersion":"1"},"data":{"filler":"` + strings.Repeat("x", filler) + `"}},` +
		`"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z","stageTimestamp":"2026-01-02T03:04:05.000002Z"}`
	text = []byte(`{"apiVersion":"audit.k8s.io/v1","kind":"EventList","items":[` + strings.Repeat(event+",", batch-1) + event + `]}`)
	for at := 0; ; {
		i := bytes.Index(text[at:], []byte(mark))
		if i < 0 {
			return text, numbers
		}
		numbers = append(numbers, at+i)
		at += i + len(mark)
	}
}

// flood sends so many events a second until ctx ends, no two of them alike.
func (s *senders) flood(ctx context.Context, rate int) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.config, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	text, numbers := body()
	ticker := time.NewTicker(time.Second * batch / time.Duration(rate))
	defer ticker.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for i, at := range numbers {
			copy(text[at:], fmt.Sprintf("%020d", n+i/2))
		}
		n += batch
		if s.post(ctx, client, text) {
			s.answered.Add(batch)
		}
	}
}

func (s *senders) post(ctx context.Context, client *http.Client, text []byte) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.address+"/", bytes.NewReader(text))
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// stall keeps connections open that never begin, that stop in the middle of a body, and that send a byte now and then, until
// ctx ends. Closed connections are opened again.
func (s *senders) stall(ctx context.Context) {
	const request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n{"
	var all sync.WaitGroup
	for range stalled {
		all.Go(func() { s.again(ctx, func(net.Conn) (net.Conn, error) { return nil, nil }, false) })
		for _, drips := range []bool{false, true} {
			all.Go(func() {
				s.again(ctx, func(c net.Conn) (net.Conn, error) {
					config := s.config.Clone()
					config.ServerName = "127.0.0.1"
					secure := tls.Client(c, config)
					_, err := io.WriteString(secure, request)
					return secure, err
				}, drips)
			})
		}
	}
	all.Wait()
}

// again connects, begins, and waits until the other side closes the connection, again and again.
func (s *senders) again(ctx context.Context, begin func(net.Conn) (net.Conn, error), drips bool) {
	for ctx.Err() == nil {
		if c, err := net.Dial("tcp", s.address); err == nil {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			secure, err := begin(c)
			for err == nil && drips {
				time.Sleep(reconnect)
				_, err = io.WriteString(secure, " ")
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, c)
			}
			stop()
			c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnect):
		}
	}
}
