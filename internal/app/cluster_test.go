package app

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

// TestAnEditedKubeconfigLeadsToItsServer at the next look at the file, and one that cannot be read to the server before it.
// What else is replaced is tested in package apiserver.
func TestAnEditedKubeconfigLeadsToItsServer(t *testing.T) {
	path := writeTemp(t, "kubeconfig", awayKubeconfig)
	client, err := NewClient(&config.Config{Cluster: config.Cluster{Kubeconfig: path}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, r.Host)
	}))
	t.Cleanup(s.Close)
	for _, text := range []string{strings.Replace(awayKubeconfig, "http://127.0.0.1:1", s.URL, 1), "half of a kubec: ["} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the file is read", func() bool {
			_, err := client.Refresh()
			return (err == nil) == (text[0] == '{') && client.Host() == s.URL
		})
		if uid, err := client.ClusterUID(t.Context()); err != nil || uid != s.Listener.Addr().String() {
			t.Errorf("%s: %q, %v", text, uid, err)
		}
	}
}
