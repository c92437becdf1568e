package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
)

// TestCredentialsAreSentToNoOtherServer: an aggregated API server, or a proxy, may redirect a request to any address, and
// the credentials are added to each request (CVE-2022-3172).
func TestCredentialsAreSentToNoOtherServer(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := httptest.NewServer(http.RedirectHandler(other.URL, status))
		client, err := NewClient(&rest.Config{Host: server.URL, BearerToken: "secret"}, "test")
		if err != nil {
			t.Fatal(err)
		}
		others, err := rest.HTTPClientFor(client.RESTConfig())
		if err != nil {
			t.Fatal(err)
		}
		for _, by := range []*http.Client{client.http, client.fresh, others} {
			answer, err := by.Get(server.URL + "/api/v1/pods")
			if err == nil {
				_ = answer.Body.Close()
			}
			if want := fmt.Sprintf("redirects to another server (status %d)", status); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, %v", status, answer, err)
			}
		}
		client.Close()
		server.Close()
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "" { // as for OpenAPI documents with an old hash
			http.Redirect(w, r, "?hash=new", http.StatusMovedPermanently)
		}
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL, BearerToken: "secret"}, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	answer, err := client.http.Get(server.URL + "/openapi/v3/api/v1")
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("within the server: %v, %v", answer, err)
	}
	_ = answer.Body.Close()
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("%d requests came to another server", n)
	}
}
