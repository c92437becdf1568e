package apiserver

import (
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func TestCompressingProxyIsReported(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("asked for %q", got)
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, `{}`) // ignore write errors: the client may have disconnected
		_ = z.Close()
	}))
	defer server.Close()
	c, err := NewClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Discover(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "Content-Encoding: gzip") {
		t.Errorf("discovery failed: %v", err)
	}
}

func TestClosedClientKeepsNoConnection(t *testing.T) {
	idle, closed := make(chan struct{}, 10), make(chan struct{}, 10)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateIdle:
			idle <- struct{}{}
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	server.StartTLS()
	defer server.Close()
	c, err := NewClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ClusterUID(t.Context()); Classify(err) != NotServed {
		t.Errorf("the request failed: %v", err)
	}
	<-idle
	c.Close()
	select {
	case <-closed:
	case <-time.After(time.Minute): // less than the idle timeout of a connection
		t.Error("the connection is still open")
	}
}
