package apiserver

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

// rotation is an API server of one generation, and a client with the credentials of one.
type rotation struct {
	t           *testing.T
	dir         string
	address     string
	server      *httptest.Server
	authorities [2]*certificates.Authority
	token       atomic.Value // that is accepted
}

// serve begins a generation: its server has a certificate of its authority, and takes its tokens and client certificates.
func (r *rotation) serve(authority *certificates.Authority, token string) {
	r.t.Helper()
	if r.server != nil {
		r.server.CloseClientConnections()
		r.server.Close()
	}
	r.token.Store(token)
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.address = listener.Addr().String()
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer "+r.token.Load().(string) && len(q.TLS.PeerCertificates) == 0 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	_ = r.server.Listener.Close()
	r.server.Listener = listener
	r.server.TLS = authority.Server(r.t)
	r.server.TLS.ClientAuth = tls.VerifyClientCertIfGiven
	r.server.EnableHTTP2 = true
	r.server.StartTLS()
}

func (r *rotation) write(name string, content []byte) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// certificate writes one for clients.
func (r *rotation) certificate(a *certificates.Authority) (cert, key string) {
	certPEM, keyPEM := a.IssueFor(r.t, "exporter")
	return r.write("client.crt", certPEM), r.write("client.key", keyPEM)
}

// TestWhateverIsReplacedIsUsedByTheNextRequest: files that a kubeconfig names, what it has itself, and what a program
// prints.
func TestWhateverIsReplacedIsUsedByTheNextRequest(t *testing.T) {
	credential := `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":%q}}`
	for name, kind := range map[string]struct {
		newAuthority bool // of the server, and of client certificates
		issue        func(*rotation, *certificates.Authority, string) (*api.Cluster, *api.AuthInfo)
	}{
		"an authority in a file": {true, func(r *rotation, a *certificates.Authority, token string) (*api.Cluster, *api.AuthInfo) {
			return &api.Cluster{CertificateAuthority: r.write("ca.crt", a.PEM)}, &api.AuthInfo{Token: "first"}
		}},
		"an authority in the kubeconfig": {true, func(_ *rotation, a *certificates.Authority, _ string) (*api.Cluster, *api.AuthInfo) {
			return &api.Cluster{CertificateAuthorityData: a.PEM}, &api.AuthInfo{Token: "first"}
		}},
		"a token in a file": {false, func(r *rotation, a *certificates.Authority, token string) (*api.Cluster, *api.AuthInfo) {
			return &api.Cluster{CertificateAuthorityData: a.PEM}, &api.AuthInfo{TokenFile: r.write("token", []byte(token+"\n"))}
		}},
		"a token in the kubeconfig": {false, func(_ *rotation, a *certificates.Authority, token string) (*api.Cluster, *api.AuthInfo) {
			return &api.Cluster{CertificateAuthorityData: a.PEM}, &api.AuthInfo{Token: token}
		}},
		"a token of a program": {false, func(r *rotation, a *certificates.Authority, token string) (*api.Cluster, *api.AuthInfo) {
			file := r.write("credential.json", fmt.Appendf(nil, credential, token))
			return &api.Cluster{CertificateAuthorityData: a.PEM}, &api.AuthInfo{Exec: &api.ExecConfig{
				Command: "/bin/cat", Args: []string{file}, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}}
		}},
		"a client certificate, by another authority": {true, func(r *rotation, a *certificates.Authority, _ string) (*api.Cluster, *api.AuthInfo) {
			cert, key := r.certificate(a)
			return &api.Cluster{CertificateAuthority: r.write("ca.crt", a.PEM)}, &api.AuthInfo{ClientCertificate: cert, ClientKey: key}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rotation{t: t, dir: t.TempDir(), address: "127.0.0.1:0", authorities: [2]*certificates.Authority{certificates.New(t), certificates.New(t)}}
			generation := func(n int) (*certificates.Authority, string) {
				token := [2]string{"first", "second"}[n]
				if kind.newAuthority {
					return r.authorities[n], "first"
				}
				return r.authorities[0], token
			}
			begin := func(n int) {
				authority, token := generation(n)
				r.serve(authority, token)
			}
			hold := func(n int) {
				authority, token := generation(n)
				cluster, user := kind.issue(r, authority, token)
				cluster.Server = "https://" + r.address
				content, err := clientcmd.Write(api.Config{CurrentContext: "c", Contexts: map[string]*api.Context{"c": {Cluster: "c", AuthInfo: "c"}},
					Clusters: map[string]*api.Cluster{"c": cluster}, AuthInfos: map[string]*api.AuthInfo{"c": user}})
				if err != nil {
					t.Fatal(err)
				}
				r.write("kubeconfig", content)
			}
			begin(0)
			defer func() { r.server.Close() }()
			hold(0)
			client, err := NewReloadingClient(func() (*rest.Config, error) {
				return clientcmd.BuildConfigFromFlags("", filepath.Join(r.dir, "kubeconfig"))
			}, "test")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ask := func() error {
				answer, err := client.http.Get("https://" + r.address + "/version")
				if err != nil {
					return err
				}
				defer answer.Body.Close() //nolint:errcheck // it was read
				if answer.StatusCode != http.StatusOK {
					return fmt.Errorf("it answers %s", answer.Status)
				}
				return nil
			}
			if err := ask(); err != nil {
				t.Fatalf("before: %v", err)
			}
			begin(1)
			if ask() == nil {
				t.Fatal("the server takes what it had before")
			}
			hold(1)
			if err := ask(); err != nil { // without waiting for the next look
				t.Errorf("behind the replacement: %v", err)
			}
			r.write("kubeconfig", []byte("half of a kubec: ["))
			if err := client.credentials.look(0); err == nil || ask() != nil {
				t.Errorf("what cannot be read (%v) leaves nothing: %v", err, ask())
			}
		})
	}
}
