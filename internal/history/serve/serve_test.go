package serve

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/history"
	store "github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var begin = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// rowOf makes a row from "resource type name version", in the namespace "shop" or that of ns/name.
func rowOf(text string) store.Row {
	parts := strings.Fields(text)
	row := store.Row{Facts: store.Facts{Cluster: "c", Version: "v1", Resource: parts[0], Kind: map[string]string{"pods": "Pod", "configmaps": "ConfigMap", "secrets": "Secret"}[parts[0]], Type: parts[1]}}
	if row.ResourceVersion = parts[len(parts)-1]; len(parts) == 3 {
		return row
	}
	row.Namespace, row.Name = "shop", parts[2]
	if namespace, name, ok := strings.Cut(parts[2], "/"); ok {
		row.Namespace, row.Name = namespace, name
	}
	row.UID = "u-" + parts[2]
	if !row.IsEnd() {
		row.Object = fmt.Sprintf(`{"kind":%q,"apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"resourceVersion":%q,"labels":{"app":%q},"creationTimestamp":"2026-01-02T02:00:00Z"}}`,
			row.Kind, row.Name, row.Namespace, row.ResourceVersion, row.Name)
	}
	return row
}

// load writes a history with a row a minute, and loads a moment of it.
func load(t testing.TB, at string, rows []store.Row) *State {
	t.Helper()
	return loadFrom(t, openHistory(t, rows), at)
}

// openHistory writes a history with a row a minute.
func openHistory(t testing.TB, rows []store.Row) *history.History {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "history")
	w, err := store.OpenWriter(store.Folder(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // the test reads what was committed
	for i := range rows {
		rows[i].ObservedAt = begin.Add(time.Duration(i) * time.Minute)
	}
	b, err := w.NewBatch(rows)
	if err == nil {
		err = b.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	h, err := history.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() }) //nolint:errcheck // it was only read
	return h
}

func loadFrom(t testing.TB, h *history.History, at string) *State {
	t.Helper()
	m, err := history.ParseMoment(at, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Load(t.Context(), h, m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sample is a history with what is known and what is not.
func sample(t *testing.T, at string) *State {
	var rows []store.Row
	for _, text := range []string{
		"pods snapshot.begin 1", "pods snapshot a/b 2", "pods snapshot a-b/a 3", "pods snapshot a/c 4", "pods snapshot.end 10",
		"configmaps snapshot.begin 1", "configmaps snapshot left 5", "configmaps snapshot kept 6", "configmaps snapshot.end 10", "configmaps left left 5",
		"secrets snapshot.begin 1", "secrets snapshot s 7", "secrets snapshot.end 10", "pods updated a/b 20", "secrets gap 40", "secrets updated s 45",
	} {
		rows = append(rows, rowOf(text))
	}
	gap := &rows[len(rows)-2]
	gap.GapFrom, gap.GapTo, gap.GapReason = "25", "40", "history was compacted"
	return load(t, at, rows)
}

func ask(t testing.TB, s *State, method, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
	r.Header.Set("Accept", accept)
	s.ServeHTTP(w, r)
	return w
}

// TestWhatIsNotKnownIsNotServed but refused with its reason, or said in a warning.
func TestWhatIsNotKnownIsNotServed(t *testing.T) {
	for _, c := range []struct {
		at, request string
		code        int
		want        string // in the body or the warnings
	}{
		{"rv:24", "GET /api/v1/secrets", 200, `"name":"s"`},
		{"rv:30", "GET /api/v1/secrets", 410, "history was compacted"},
		{"rv:30", "GET /api/v1/namespaces/shop/secrets/s", 410, "history was compacted"},
		{"rv:30", "GET /api/v1/secrets?watch=1", 410, "history was compacted"},
		{"rv:30", "GET /api/v1/pods", 200, `"resourceVersion":"30"`},
		{"rv:5", "GET /api/v1/pods", 410, "the history begins there"},
		{"rv:3", "GET /api/v1/namespaces/a/pods/none", 410, "the history begins there"},
		{"rv:30", "GET /api/v1/namespaces/a/pods/none", 404, "not found"},
		{"rv:30", "GET /api/v1/configmaps", 200, "configmaps shop/left: no longer selected by the rules, and may exist"},
		{"rv:30", "GET /api/v1/namespaces/other/configmaps", 200, `"items":[]`},
		{"rv:30", "GET /api/v1/namespaces/shop/configmaps/left", 410, "no longer selected by the rules"},
		{"rv:30", "GET /api/v1/namespaces/shop/configmaps/kept", 200, `"name":"kept"`},
		{"rv:30", "POST /api/v1/namespaces/shop/configmaps", 405, "read-only"},
		{"rv:30", "DELETE /api/v1/pods", 405, "read-only"},
		{"rv:30", "GET /api/v1/namespaces/shop/configmaps/kept/scale", 404, "no scale of configmaps"},
		{"rv:30", "GET /apis/apps/v1/deployments", 404, "nothing at this path"},
		{"rv:30", "GET /x/v1/pods", 404, "nothing at this path"},
		{"rv:30", "GET /api/v1/pods?fieldSelector=spec.x%3Dy", 400, "not supported: spec.x"},
		{"rv:30", "GET /api/v1/pods?labelSelector=%3D%3D", 400, "labelSelector"},
		{"rv:30", "GET /api/v1/pods?limit=-1", 400, "limit"},
		{"rv:30", "GET /api/v1/pods?continue=x", 400, "continue"},
		{"rv:30", "GET /api/v1/pods?resourceVersion=20&resourceVersionMatch=Exact", 410, "known from 30 to 30"},
		{"rv:30", "GET /api/v1/pods?watch=1&resourceVersion=20", 410, "too old"},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		w := ask(t, sample(t, c.at), method, path, "application/json")
		if text := w.Body.String() + strings.Join(w.Header().Values("Warning"), "\n"); w.Code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s at %s: %d %s, want %d and %s", c.request, c.at, w.Code, text, c.code, c.want)
		}
	}
}

// TestPagesHaveEachObjectOnce in the order of the API server, which compares namespace and name as one text.
func TestPagesHaveEachObjectOnce(t *testing.T) {
	s := sample(t, "rv:24")
	for _, accept := range []string{"application/json", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
		var names []string
		for next := ""; ; {
			var list struct {
				Kind     string
				Metadata struct {
					Continue           string
					RemainingItemCount int
				}
				Items []struct {
					Metadata struct{ Namespace, Name, ResourceVersion string }
				}
			}
			b := ask(t, s, http.MethodGet, "/api/v1/pods?limit=1&continue="+next, accept).Body.Bytes()
			if err := json.Unmarshal(b, &list); err != nil || len(list.Items) != 1 || list.Metadata.RemainingItemCount != 2-len(names) {
				t.Fatalf("%v %s", err, b)
			}
			m := list.Items[0].Metadata
			names = append(names, m.Namespace+"/"+m.Name+"@"+m.ResourceVersion)
			if next = list.Metadata.Continue; next == "" {
				break
			}
		}
		if got := strings.Join(names, " "); got != "a-b/a@3 a/b@20 a/c@4" {
			t.Error(got)
		}
	}
}

// TestAWatchOfAMomentShowsWhatExistsAndThenNothing until it ends.
func TestAWatchOfAMomentShowsWhatExistsAndThenNothing(t *testing.T) {
	s := sample(t, "rv:24")
	for query, want := range map[string]string{
		"":                       "ADDED a ADDED b ADDED c",
		"&resourceVersion=0":     "ADDED a ADDED b ADDED c",
		"&resourceVersion=24":    "",
		"&labelSelector=app%3Db": "ADDED b",
		"&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan": "ADDED a ADDED b ADDED c BOOKMARK true@24",
	} {
		var got []string
		for lines := bufio.NewScanner(ask(t, s, http.MethodGet, "/api/v1/pods?watch=1&timeoutSeconds=1"+query, "application/json").Body); lines.Scan(); {
			var e struct {
				Type   string
				Object struct {
					Metadata struct {
						Name, ResourceVersion string
						Annotations           map[string]string
					}
				}
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			if m := e.Object.Metadata; e.Type == "BOOKMARK" {
				got = append(got, e.Type, m.Annotations["k8s.io/initial-events-end"]+"@"+m.ResourceVersion)
			} else {
				got = append(got, e.Type, m.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", query, got, want)
		}
	}
}

// TestOnlyTheKubeconfigLetsIn has a client with the right certificate send what a stranger or a page in a browser would.
func TestOnlyTheKubeconfigLetsIn(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "kubeconfig")
	started, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- Run(ctx, sample(t, "rv:24"), path, func(context.Context) error { close(started); return nil })
	}()
	<-started
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	found := regexp.MustCompile(`(?s)token: ([^}]+)}.*server: "(https://127\.0\.0\.1:\d+)", certificate-authority-data: ([^}]+)}`).FindStringSubmatch(string(b))
	ca, err := base64.StdEncoding.DecodeString(found[3])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	for _, c := range []struct {
		token, host string
		code        int
	}{{found[1], "", 200}, {"", "", 401}, {found[1] + "x", "", 401}, {found[1], "evil.example.com", 403}, {found[1], "localhost", 403}} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, found[2]+"/api/v1/pods", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+c.token)
		r.Host = c.host
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if response.Body.Close(); err != nil || response.StatusCode != c.code {
			t.Errorf("%v: %d %s %v", c, response.StatusCode, body, err)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, found[2]+"/api/v1/pods?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+found[1])
	watch, err := client.Do(r) // which the end of the server ends
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	io.Copy(io.Discard, watch.Body) //nolint:errcheck // a slow machine cuts it off
	watch.Body.Close()              //nolint:errcheck // nothing is written
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the kubeconfig is still there: %v", err)
	}
}

// TestAKubeconfigOfAnotherIsLeftAsItIs.
func TestAKubeconfigOfAnotherIsLeftAsItIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	const text = "apiVersion: v1\nkind: Config\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), sample(t, "rv:24"), path, func(context.Context) error { return errors.New("it serves") }); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != text {
		t.Errorf("%s %v", b, err)
	}
}
