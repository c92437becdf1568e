package source

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/test/parts/certificates"
)

// TestAnAPIServerThatIsNotTrustedIsNamed: the client trusts another authority than the one of the server's certificate.
func TestAnAPIServerThatIsNotTrustedIsNamed(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = certificates.New(t).Server(t)
	server.Config.ErrorLog = nil
	server.StartTLS()
	defer server.Close()
	client, err := apiserver.NewClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: certificates.New(t).PEM}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	s, _, stop := startSource(t, newFakeAPI(t), newStore(), func(c *Config) { c.Client = client })
	defer stop()
	deadline := time.Now().Add(time.Minute)
	for {
		failing := condition.Summarize(s.Conditions())
		if len(failing) == 1 && failing[0].Code == condition.CertificateRefused &&
			strings.HasPrefix(failing[0].Cause, "the server's certificate is not trusted") && strings.Contains(failing[0].Remedy, "kubeconfig") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", failing)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
