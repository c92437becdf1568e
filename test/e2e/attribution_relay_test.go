package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// auditRelay is a proxy between the API server and the exporter that mangles batches.
type auditRelay struct {
	*httptest.Server
	to     string
	client *http.Client

	mu     sync.Mutex
	random *rand.Rand
	mangle func(*auditRelay, []json.RawMessage) []json.RawMessage
	held   []json.RawMessage // delayed
	taken  []json.RawMessage // events answered with 200
}

// connectTo makes the API server send its events to the relay.
func (l *auditRelay) connectTo(a *audited, _ *controlplane.Options) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.ca)
	pair := func(name string) tls.Certificate {
		return must(tls.LoadX509KeyPair(filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")))
	}
	l.to = "https://" + a.webhook + "/"
	l.client = &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true, // one connection, as an API server has: each counts as an API server
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair("client")}},
	}}
	l.Server = httptest.NewUnstartedServer(l)
	l.TLS = &tls.Config{Certificates: []tls.Certificate{pair("server")}}
	l.StartTLS()
	a.sendTo = strings.TrimPrefix(l.URL, "https://")
	a.t.Cleanup(func() {
		l.Close()
		l.client.CloseIdleConnections()
	})
}

// ServeHTTP forwards a mangled batch, and returns the status of the exporter.
func (l *auditRelay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var list struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l.mu.Lock()
	list.Items = l.mangle(l, list.Items)
	l.mu.Unlock()
	response, err := l.client.Post(l.to, "application/json", bytes.NewReader(must(json.Marshal(list))))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		l.mu.Lock()
		l.taken = append(l.taken, list.Items...)
		l.mu.Unlock()
	}
	w.WriteHeader(response.StatusCode)
}

func (l *auditRelay) setMangle(mangle func(*auditRelay, []json.RawMessage) []json.RawMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mangle = mangle
}

// passAll forwards everything, including the delayed events.
func passAll(l *auditRelay, all []json.RawMessage) []json.RawMessage {
	all, l.held = append(l.held, all...), nil
	return all
}
