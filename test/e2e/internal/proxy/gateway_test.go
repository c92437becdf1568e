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

// TestGatewayAnswersAndForwards also heals its fault.
func TestGatewayAnswersAndForwards(t *testing.T) {
	backend := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path)
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

	const list = "/apis/apps/v1/namespaces/web/a"
	ofList := func(r Request) bool { return r.Group == "apps" && r.Resource == "a" && r.Namespace == "web" }
	heal := g.Fault(ofList, func(w http.ResponseWriter, _ *http.Request) {
		Status(w, http.StatusGone, "Expired", "too old resource version")
	})
	if code, _ := get(list); code != http.StatusGone {
		t.Errorf("%s: %d", list, code)
	}
	heal()
	if code, text := get(list); code != http.StatusOK || text != list {
		t.Errorf("%s: %d %s", list, code, text)
	}
}
