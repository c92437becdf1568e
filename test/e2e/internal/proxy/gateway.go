package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/tools/clientcmd"
)

// Gateway passes requests on to one API server, under a certificate of its own. Its methods may be called concurrently.
type Gateway struct {
	server *httptest.Server
	next   *httputil.ReverseProxy
	closed chan struct{}

	mu     sync.Mutex
	faults []*fault
}

// fault answers some requests.
type fault struct {
	meets   func(Request) bool
	handler http.HandlerFunc
}

// Request is one that the gateway was asked.
type Request struct {
	Group, Resource string // "" and "" for what names no resource
	Namespace       string // "" for all
	Path            string
	Query           url.Values
}

// Watch reports whether the request asks for changes, be it after what there is.
func (r Request) Watch() bool { return r.Query.Get("watch") == "true" || r.Query.Get("watch") == "1" }

// Discovery reports whether the request asks what is served.
func (r Request) Discovery() bool {
	return r.Path == "/api" || r.Path == "/apis" || r.Path == "/api/v1" ||
		strings.HasPrefix(r.Path, "/apis/") && strings.Count(r.Path, "/") <= 3
}

// StartGateway listens on a free loopback port and passes requests on to the API server at address, "127.0.0.1:PORT"; its
// certificate the authority in caFile has signed. Close must be called.
func StartGateway(address, caFile string) (*Gateway, error) {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	to := &url.URL{Scheme: "https", Host: address}
	g := &Gateway{closed: make(chan struct{})}
	g.next = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, // a watch sees it at once
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, DisableCompression: true,
		},
	}
	g.server = httptest.NewUnstartedServer(http.HandlerFunc(g.serve))
	g.server.EnableHTTP2 = true
	g.server.StartTLS()
	return g, nil
}

// Kubeconfig writes a copy of a kubeconfig that leads through the gateway.
func (g *Gateway) Kubeconfig(original, path string) error {
	config, err := clientcmd.LoadFromFile(original)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = g.server.URL
		cluster.CertificateAuthority = ""
		cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.server.Certificate().Raw})
	}
	return clientcmd.WriteToFile(*config, path)
}

// Fault lets the handler answer the requests that meets is true of, until heal is called. Of several faults the last one
// counts. Open connections continue, see Cut.
func (g *Gateway) Fault(meets func(Request) bool, handler http.HandlerFunc) (heal func()) {
	f := &fault{meets, handler}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = append(g.faults, f)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.faults = slices.DeleteFunc(g.faults, func(other *fault) bool { return other == f })
	}
}

// Pass answers as the API server does, for handlers that do so in part.
func (g *Gateway) Pass(w http.ResponseWriter, r *http.Request) { g.next.ServeHTTP(w, r) }

// Hang takes a request and never answers, until the client gives up or the gateway is closed.
func (g *Gateway) Hang(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-g.closed:
	}
}

// Cut ends all connections.
func (g *Gateway) Cut() { g.server.CloseClientConnections() }

// Close ends all connections and returns when nothing of the gateway runs.
func (g *Gateway) Close() {
	close(g.closed)
	g.server.CloseClientConnections()
	g.server.Close()
	g.next.Transport.(*http.Transport).CloseIdleConnections()
}

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	if handler := g.handlerOf(requestOf(r)); handler != nil {
		handler(w, r)
		return
	}
	g.Pass(w, r)
}

// handlerOf returns what answers a request, nil for the API server.
func (g *Gateway) handlerOf(r Request) http.HandlerFunc {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range slices.Backward(g.faults) {
		if f.meets(r) {
			return f.handler
		}
	}
	return nil
}

// requestOf takes a path such as /apis/apps/v1/namespaces/web/deployments apart.
func requestOf(r *http.Request) Request {
	q := Request{Path: r.URL.Path, Query: r.URL.Query()}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case parts[0] == "apis" && len(parts) > 3:
		q.Group, parts = parts[1], parts[3:]
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	default:
		return q
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		q.Namespace, parts = parts[1], parts[2:]
	}
	q.Resource = parts[0]
	return q
}

// Status answers with an error as an API server writes it.
func Status(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
}
