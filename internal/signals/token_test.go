package signals

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
)

const token = "0123456789abcdef0123456789abcdef"

// guardedServer serves signals with the token in a file, and returns a client's error for a token.
type guardedServer struct {
	t     *testing.T
	file  string
	path  atomic.Pointer[string] // of the file, as configured
	log   bytes.Buffer
	guard *TokenGuard
	url   string
}

func newGuardedServer(t *testing.T, h Handler) *guardedServer {
	t.Helper()
	s := &guardedServer{t: t, file: filepath.Join(t.TempDir(), "token")}
	s.write(s.file, token+"\n")
	s.path.Store(&s.file)
	s.guard = NewTokenGuard(func() credentials.Secret { return credentials.InFile(*s.path.Load()) }, slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	server := httptest.NewServer(s.guard.Wrap(NewHTTPHandler(h)))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *guardedServer) write(path, text string) {
	s.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// ask sends a request with a header, and returns status and body of the answer.
func (s *guardedServer) ask(method, authorization string, body io.Reader) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+Path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// countingHandler counts the requests that it gets.
type countingHandler struct {
	stubHandler
	n *atomic.Int32
}

func (h countingHandler) List() ([]Signal, error) {
	h.n.Add(1)
	return h.stubHandler.List()
}

func TestOnlyTheTokenOpensTheAdminServer(t *testing.T) {
	var served atomic.Int32
	s := newGuardedServer(t, countingHandler{stubHandler{signal: Request{Kind: Pause, Sink: "a"}.New(noon)}, &served})
	for _, wrong := range []string{
		"", token, "Bearer ", "Bearer " + token[1:], "Bearer " + token + "x", "Bearer  " + token, "bearer " + token, "Basic " + token,
		"Bearer " + strings.ToUpper(token),
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
			if status, text := s.ask(method, wrong, strings.NewReader("{}")); status != http.StatusUnauthorized ||
				text != `{"signals":null,"error":"unauthorized"}`+"\n" {
				t.Errorf("%s %q: %d, %s", method, wrong, status, text)
			}
		}
	}
	if served.Load() != 0 {
		t.Fatal("a request without the token was executed")
	}
	if status, text := s.ask(http.MethodGet, "Bearer "+token, nil); status != http.StatusOK || !strings.Contains(text, `"pause"`) {
		t.Errorf("with the token: %d, %s", status, text)
	}
	if strings.Contains(s.log.String(), token[:8]) {
		t.Errorf("the log has the token: %s", s.log.String())
	}
}

func TestTheTokenIsReadAgainAndAnUnreadableOneIsReported(t *testing.T) {
	s := newGuardedServer(t, stubHandler{})
	other := strings.Repeat("z", minTokenBytes)
	s.write(s.file, other)
	if status, _ := s.ask(http.MethodGet, "Bearer "+token, nil); status != http.StatusUnauthorized {
		t.Errorf("the former token: %d", status)
	}
	if status, _ := s.ask(http.MethodGet, "Bearer "+other, nil); status != http.StatusOK {
		t.Errorf("the new token: %d", status)
	}
	for name, text := range map[string]string{"empty": " \n", "short": "secret", "two lines": token + "\n" + token, "large": strings.Repeat("x", maxTokenBytes+1)} {
		s.write(s.file, text)
		if status, _ := s.ask(http.MethodGet, "Bearer "+strings.TrimSpace(text[:min(len(text), 32)]), nil); status != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, status)
		}
		if now := s.guard.Status(); now.Code != condition.SignalsUnreceived || !strings.Contains(now.Cause, s.file) || strings.Contains(now.Cause, token) {
			t.Errorf("%s: %+v", name, now)
		}
	}
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	if status, _ := s.ask(http.MethodGet, "Bearer ", nil); status != http.StatusUnauthorized || s.guard.Status().OK() {
		t.Errorf("without the file: %d", status)
	}
	s.write(s.file, token)
	if now := s.guard.Status(); !now.OK() {
		t.Errorf("with the file again: %+v", now)
	}
}

func TestWithoutATokenFileThePathDoesNotExist(t *testing.T) {
	s := newGuardedServer(t, stubHandler{})
	none := ""
	s.path.Store(&none)
	nowhere := httptest.NewServer(http.NewServeMux())
	defer nowhere.Close()
	response, err := http.Post(nowhere.URL+Path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	want, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if status, text := s.ask(http.MethodPost, "Bearer "+token, nil); status != response.StatusCode || text != string(want) {
		t.Errorf("%d, %q and not %d, %q", status, text, response.StatusCode, want)
	}
	if !s.guard.Status().OK() {
		t.Error("a condition without a token file")
	}
	client, err := NewServerClient(s.url, s.file, false)
	if err != nil {
		t.Fatal(err)
	}
	var denied *DeniedError
	if _, err := client.List(t.Context()); !errors.As(err, &denied) || !strings.Contains(err.Error(), "admin.signals.token") {
		t.Errorf("the client: %v", err)
	}
}

func TestABodyIsBounded(t *testing.T) {
	s := newGuardedServer(t, stubHandler{})
	if status, text := s.ask(http.MethodPost, "Bearer "+token, strings.NewReader(strings.Repeat(" ", maxBodyBytes+1))); status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(text, "81920 bytes at most") {
		t.Errorf("%d, %s", status, text)
	}
}

func TestTheClientSendsATokenInCleartextToThisMachineOnly(t *testing.T) {
	s := newGuardedServer(t, stubHandler{})
	for server, want := range map[string]string{
		"http://localhost:8080": "", "http://127.0.0.1:8080/": "", "http://[::1]:8080": "", "https://exporter.example.com": "",
		"http://exporter.example.com": "in cleartext", "http://10.0.0.1:8080": "in cleartext",
		"localhost:8080": "is no URL", "ftp://localhost": "is no URL", "http://user@localhost": "is no URL", "": "is no URL",
	} {
		_, err := NewServerClient(server, s.file, false)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", server, err)
		}
	}
	if _, err := NewServerClient("http://10.0.0.1:8080", s.file, true); err != nil {
		t.Error(err)
	}
	wrong := filepath.Join(t.TempDir(), "wrong")
	s.write(wrong, strings.Repeat("w", minTokenBytes))
	client, err := NewServerClient(s.url, wrong, false)
	if err != nil {
		t.Fatal(err)
	}
	var denied *DeniedError
	if _, err := client.Submit(t.Context(), Request{Kind: Pause, Sink: "a"}); !errors.As(err, &denied) || strings.Contains(err.Error(), "www") {
		t.Errorf("a wrong token: %v", err)
	}
}
