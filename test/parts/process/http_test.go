package process_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/process"
)

func TestAnAnswerThatIsNotOKIsTheError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	if err := process.GetOK(t.Context(), server.URL+"/ready"); err != nil {
		t.Error(err)
	}
	if err := process.GetOK(t.Context(), server.URL+"/"); err == nil || !strings.Contains(err.Error(), "503 Service Unavailable: not yet") {
		t.Errorf("got %v", err)
	}
}
