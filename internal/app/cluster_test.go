package app

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

// guardedServer is an API server that knows one token, or one client certificate authority.
func guardedServer(t *testing.T, token string, authority, clients *certificates.Authority) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, r.Host)
	}))
	s.TLS = authority.Server(t)
	s.TLS.ClientAuth = tls.NoClientCert
	if clients != nil {
		s.TLS.ClientCAs = x509.NewCertPool()
		s.TLS.ClientCAs.AppendCertsFromPEM(clients.PEM)
		s.TLS.ClientAuth = tls.RequireAndVerifyClientCert
	}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// TestChangedCredentialsAreUsedByTheNextRequest: each part of a kubeconfig is replaced, in it or in a file that it names,
// together with the server that knows only the new one. The request that finds out is answered.
func TestChangedCredentialsAreUsedByTheNextRequest(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name+".new"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path(name+".new"), path(name)); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := func(server, user string) {
		t.Helper()
		write("kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
			clusters: [{name: c, cluster: {server: %q, certificate-authority: ca.pem}}], users: [{name: u, user: {%s}}]}`, server, user))
	}
	one, other := certificates.New(t), certificates.New(t)
	tokenOf := func(name string) string { return "token: " + name }
	const fromFile, certified = "tokenFile: token", "client-certificate: cert.pem, client-key: key.pem"
	issue := func(a *certificates.Authority) {
		t.Helper()
		cert, key := a.IssueFor(t, "exporter")
		write("cert.pem", string(cert))
		write("key.pem", string(key))
	}
	steps := []struct {
		name   string
		server *httptest.Server
		change func(server string)
	}{
		{"the first", guardedServer(t, "a", one, nil), func(s string) { write("ca.pem", string(one.PEM)); kubeconfig(s, tokenOf("a")) }},
		{"a token, another address", guardedServer(t, "b", one, nil), func(s string) { kubeconfig(s, tokenOf("b")) }},
		{"a token in a file", guardedServer(t, "c", one, nil), func(s string) { write("token", "c\n"); kubeconfig(s, fromFile) }},
		{"the authority", guardedServer(t, "c", other, nil), func(s string) { write("ca.pem", string(other.PEM)); kubeconfig(s, fromFile) }},
		{"a certificate", guardedServer(t, "", other, one), func(s string) { issue(one); kubeconfig(s, certified) }},
		{"another certificate", guardedServer(t, "", other, other), func(s string) { issue(other); kubeconfig(s, certified) }},
	}
	var client *apiserver.Client
	for _, step := range steps {
		step.change(step.server.URL)
		if client == nil {
			var err error
			client, err = NewClient(&config.Config{Cluster: config.Cluster{Kubeconfig: path("kubeconfig")}}, "test")
			if err != nil {
				t.Fatal(err)
			}
		}
		awaitUID(t, client, strings.TrimPrefix(step.server.URL, "https://"), step.name)
	}
	write("kubeconfig", "half of a kubec: [")
	awaitRefresh(t, client, false)
	awaitUID(t, client, strings.TrimPrefix(steps[len(steps)-1].server.URL, "https://"), "what cannot be read leaves the old")
}

// awaitUID waits until a request is answered by the server: at most one may still be sent with what was read a moment ago.
func awaitUID(t *testing.T, client *apiserver.Client, want, step string) {
	t.Helper()
	limit := time.Now().Add(15 * apiserver.LookInterval)
	for {
		uid, err := client.ClusterUID(t.Context())
		if err == nil && uid == want {
			return
		}
		if err != nil || time.Now().After(limit) {
			t.Fatalf("%s: %q, %v", step, uid, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// awaitRefresh waits until the files can be read, or not.
func awaitRefresh(t *testing.T, client *apiserver.Client, readable bool) {
	t.Helper()
	for limit := time.Now().Add(15 * apiserver.LookInterval); ; time.Sleep(50 * time.Millisecond) {
		if _, err := client.Refresh(); (err == nil) == readable {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("readable: %t", !readable)
		}
	}
}
