package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/certificates"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestForgedAuditEventsAreRejected sends forged events of changes before the API server does: with a certificate of an
// unlisted name, with one of the API server's name that another authority has signed, and without one.
func TestForgedAuditEventsAreRejected(t *testing.T) {
	require.Long(t)
	const changes = 20
	a := newAudited(t)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	strangers := a.newStrangers()
	before := a.sumMetric("kubecdc_audit_refused_total")
	for i, told := 0, 0; told < changes; i++ {
		code, h := a.newUser(1).doRequest(t.Context(), "POST", "/api/v1/namespaces/busy-0/configmaps", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d"}}`, i))
		if isBusy(code) && t.Context().Err() == nil {
			continue
		}
		if code != http.StatusCreated {
			t.Fatalf("%d %s", code, h.text)
		}
		told++
		forged := forgeEvent(h)
		for what, stranger := range strangers {
			response, err := stranger.Post("https://"+a.webhook+"/", "application/json", strings.NewReader(forged))
			if err != nil {
				continue
			}
			if response.Body.Close(); response.StatusCode != http.StatusForbidden {
				t.Fatalf("%s: %s", what, response.Status)
			}
		}
	}
	for deadline := time.Now().Add(arriveWithin); a.sumMetric("kubecdc_attributed_total") < changes; time.Sleep(lookEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("%v of %d have an author", a.sumMetric("kubecdc_attributed_total"), changes)
		}
	}
	a.awaitSettled()
	if refused := a.sumMetric("kubecdc_audit_refused_total") - before; refused < float64(changes*len(strangers)) {
		t.Errorf("%v requests are counted of %d", refused, changes*len(strangers))
	}
	for id, name := range a.authorsByID(a.readRecords()) {
		if name != writer(1) {
			t.Errorf("%s has author %s", id, name)
		}
	}
	if text := readText(t, a.stream); bytes.Contains([]byte(text), []byte("mallory")) {
		t.Error("the stream has the forged user")
	}
}

// newStrangers returns clients that are not allowed to send events.
func (a *audited) newStrangers() map[string]*http.Client {
	a.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.ca)
	elsewhere := must(tls.X509KeyPair(certificates.New(a.t).IssueFor(a.t, apiServer)))
	other := must(tls.LoadX509KeyPair(filepath.Join(a.dir, "other.crt"), filepath.Join(a.dir, "other.key")))
	all := map[string]*http.Client{}
	for what, own := range map[string][]tls.Certificate{"another name": {other}, "another authority": {elsewhere}, "no certificate": nil} {
		all[what] = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: own}}}
	}
	return all
}

// forgeEvent returns an audit event by which another user has created the object.
func forgeEvent(h answerHead) string {
	return fmt.Sprintf(`{"apiVersion":"audit.k8s.io/v1","kind":"EventList","items":[{"apiVersion":"audit.k8s.io/v1","kind":"Event","level":"RequestResponse",`+
		`"auditID":"f","stage":"ResponseComplete","verb":"create","user":{"username":"mallory"},"objectRef":{"resource":"configmaps","namespace":"busy-0",`+
		`"name":%q,"apiVersion":"v1"},"responseStatus":{"code":201},"responseObject":{"kind":"ConfigMap","metadata":{"uid":%q,"resourceVersion":%q}},`+
		`"requestReceivedTimestamp":"2026-01-01T00:00:00.000001Z","stageTimestamp":"2026-01-01T00:00:00.000002Z"}]}`,
		h.Metadata.Name, h.Metadata.UID, h.Metadata.ResourceVersion)
}
