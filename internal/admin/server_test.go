package admin

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAPageOfAnotherNameIsNotAnswered is the request of a browser after DNS rebinding: the page's name resolves to this
// machine.
func TestAPageOfAnotherNameIsNotAnswered(t *testing.T) {
	for listen, hosts := range map[string]map[string]int{
		"127.0.0.1:0": {"localhost:8080": 200, "127.0.0.1": 200, "[::1]:8080": 200, "a.localhost": 200, "evil.example:8080": 421, "10.0.0.1": 421, "": 421},
		"0.0.0.0:0":   {"exporter.kubecdc.svc:8080": 200, "10.0.0.1": 200},
	} {
		s := New(Options{Listen: listen, Snapshot: func() Snapshot { return Snapshot{} }})
		if err := s.Listen(); err != nil {
			t.Fatal(err)
		}
		for host, want := range hosts {
			r := httptest.NewRequest(http.MethodGet, "/livez", nil)
			r.Host = host
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("listening on %s, Host %q: %d, want %d", listen, host, w.Code, want)
			}
		}
		if err := s.listener.Close(); err != nil {
			t.Error(err)
		}
	}
	if isLocal(net.IPv4(8, 8, 8, 8).String()) {
		t.Error("8.8.8.8 is local")
	}
}
