package proxy

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGatewayHidesAnswersAndForwards also heals its fault.
func TestGatewayHidesAnswersAndForwards(t *testing.T) {
	backend := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis":
			_, _ = io.WriteString(w, `{"items":[{"metadata":{"name":"apps"},"versions":[{"version":"v1","resources":[{"resource":"a"},{"resource":"b"}]}]}]}`)
		case "/apis/apps/v1":
			_, _ = io.WriteString(w, `{"resources":[{"name":"a"},{"name":"a/status"},{"name":"b"}]}`)
		default:
			_, _ = io.WriteString(w, r.URL.Path)
		}
	}))
	defer backend.Close()
	ca := filepath.Join(t.TempDir(), "ca")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: backend.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := StartGateway(strings.TrimPrefix(backend.URL, "https://"), ca)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	client := g.server.Client()
	get := func(path string) (int, string) {
		t.Helper()
		answer, err := client.Get(g.server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}

	g.Hide("apps", "a")
	for _, path := range []string{"/apis", "/apis/apps/v1"} {
		if _, text := get(path); strings.Contains(text, `"a"`) || strings.Contains(text, "a/status") || !strings.Contains(text, `"b"`) {
			t.Errorf("%s shows %s", path, text)
		}
	}
	g.Show("apps", "a")
	if _, text := get("/apis"); !strings.Contains(text, `"a"`) {
		t.Errorf("/apis shows %s", text)
	}

	const list = "/apis/apps/v1/namespaces/web/a"
	heal := g.Fault(func(r Request) bool { return r.Group == "apps" && r.Resource == "a" && r.Namespace == "web" }, Expired)
	if code, _ := get(list); code != http.StatusGone {
		t.Errorf("%s: %d", list, code)
	}
	heal()
	if code, text := get(list); code != http.StatusOK || text != list {
		t.Errorf("%s: %d %s", list, code, text)
	}
	if n := len(g.Requests()); n != 5 {
		t.Errorf("%d requests were noted", n)
	}
}
