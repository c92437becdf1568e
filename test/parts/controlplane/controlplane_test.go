package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/require"
)

// running starts a control plane that ends with the test.
func running(t *testing.T, options Options) *ControlPlane {
	t.Helper()
	require.Integration(t)
	options.Dir = t.TempDir()
	c, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// call makes a request with a user's token and returns the status and the body.
func call(t *testing.T, c *ControlPlane, token, method, path, body string) (int, string) {
	t.Helper()
	client, err := c.trustingClient()
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, c.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "controlplane-test")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

const namespaceBody = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`

func TestTheControlPlaneServesAndKeepsObjectsThroughAnOutage(t *testing.T) {
	reader := User{Name: "reader", Token: "reader-token", Groups: []string{"readers", "people"}}
	c := running(t, Options{Users: []User{reader}})

	code, body := call(t, c, c.AdminToken(), http.MethodGet, "/version", "")
	var version struct{ GitVersion, Major, Minor string }
	if err := json.Unmarshal([]byte(body), &version); err != nil || code != http.StatusOK {
		t.Fatalf("GET /version: %d %s (%v)", code, body, err)
	}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" && (version.GitVersion != "v1.37.1" || version.Minor != "37") {
		t.Errorf("version = %+v, want v1.37.1", version)
	}
	if code, body := call(t, c, c.AdminToken(), http.MethodPost, "/api/v1/namespaces", namespaceBody); code != http.StatusCreated {
		t.Fatalf("create a namespace: %d %s", code, body)
	}
	if code, body := call(t, c, reader.Token, http.MethodGet, "/api/v1/namespaces/shop", ""); code != http.StatusForbidden {
		t.Fatalf("a user without rights reads: %d %s", code, body)
	}
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`
	if code, body := call(t, c, c.AdminToken(), http.MethodPost, "/api/v1/namespaces/shop/pods", pod); code != http.StatusCreated {
		t.Fatalf("create a pod: %d %s", code, body)
	}
	account := `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"exporter"}}`
	if code, body := call(t, c, c.AdminToken(), http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts", account); code != http.StatusCreated {
		t.Fatalf("create a service account: %d %s", code, body)
	}
	checkServiceAccountToken(t, c)
	checkOutage(t, c)
	checkAudit(t, c, reader)
}

// checkServiceAccountToken asks for a token and uses it: that it is refused rights, not identity, shows that the
// issuer works.
func checkServiceAccountToken(t *testing.T, c *ControlPlane) {
	t.Helper()
	request := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`
	code, body := call(t, c, c.AdminToken(), http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts/exporter/token", request)
	var answer struct{ Status struct{ Token string } }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusCreated {
		t.Fatalf("token request: %d %s (%v)", code, body, err)
	}
	code, body = call(t, c, answer.Status.Token, http.MethodGet, "/api/v1/namespaces/shop", "")
	if code != http.StatusForbidden || !strings.Contains(body, "system:serviceaccount:shop:exporter") {
		t.Fatalf("a read with the token: %d %s", code, body)
	}
}

// checkOutage stops and kills the API server; the namespace must be there afterwards, at the same address.
func checkOutage(t *testing.T, c *ControlPlane) {
	t.Helper()
	for name, end := range map[string]func() error{"stop": c.StopAPIServer, "kill": c.KillAPIServer} {
		if err := errors.Join(end(), c.StartAPIServer(t.Context())); err != nil {
			t.Fatalf("%s and start again: %v", name, err)
		}
		if code, body := call(t, c, c.AdminToken(), http.MethodGet, "/api/v1/namespaces/shop", ""); code != http.StatusOK {
			t.Fatalf("after %s: %d %s", name, code, body)
		}
	}
}

// checkAudit waits for the reader's refused request.
func checkAudit(t *testing.T, c *ControlPlane, reader User) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		entries, err := c.AuditEntries()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.User == reader.Name && e.Verb == "get" && e.Resource == "namespaces" && e.Name == "shop" && e.Code == 403 &&
				e.Stage == "ResponseComplete" && e.UserAgent == "controlplane-test" && !e.Time.IsZero() {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no entry for the refused read in %d entries", len(entries))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestAKubeconfigHoldsWhatAClientNeeds(t *testing.T) {
	c := &ControlPlane{dir: t.TempDir(), port: 1, admin: newAdmin(), users: map[string]User{}}
	user := User{Name: "system:serviceaccount:a:b", Token: "secret"}
	c.users[user.Name] = user
	if err := c.writeFiles(); err != nil {
		t.Fatal(err)
	}
	path, err := c.KubeconfigFor(user.Name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"token": "secret"`, `"server": "https://127.0.0.1:1"`, c.CAFile(), `"current-context"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if _, err := c.KubeconfigFor("nobody"); err == nil {
		t.Error("an unknown user has a kubeconfig")
	}
}

func TestAWrongFlagIsReportedWithTheServersOwnWords(t *testing.T) {
	require.Integration(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	_, err := Start(ctx, Options{Dir: t.TempDir(), APIServerArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Fatalf("Start: %v", err)
	}
}

func TestMissingAssetsAreNamed(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	_, err := Start(t.Context(), Options{Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "KUBEBUILDER_ASSETS") {
		t.Fatalf("Start: %v", err)
	}
}

func TestALineBeingWrittenIsNotRead(t *testing.T) {
	whole := `{"verb":"list","stage":"ResponseComplete","objectRef":{"resource":"pods"},"responseStatus":{"code":200}}` + "\n"
	entries, err := parseAudit([]byte(whole + `{"verb":"wat`))
	if err != nil || len(entries) != 1 || entries[0].Resource != "pods" || entries[0].Code != 200 {
		t.Fatalf("parseAudit: %+v, %v", entries, err)
	}
	if _, err := parseAudit([]byte(whole + "garbage\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Fatalf("parseAudit of garbage: %v", err)
	}
}
