package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// plantedSecrets has a secret for every key of the configuration that takes one.
var plantedSecrets = map[string]string{
	"a part of the webhook's path": "T0KENinPATH77", "the webhook's query": "sig-4f1c9e77", "a header": "header-value-3141", "a header from a file": "file-value-2718",
	"a bearer token": "bearer-1618033", "a NATS password": "nats-pass-1414", "a NATS token in a variable": "nats-token-1732",
	"a Kafka password": "kafka-pass-2236", "a redaction key": "redaction-key-2449489743",
}

// TestNoConfiguredSecretIsShown sets every secret of the configuration, lets every sink fail, one of them at a receiver that
// echoes requests, and searches the log, every page and the files of the journal for the secrets.
func TestNoConfiguredSecretIsShown(t *testing.T) {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		// The client may have gone.
		_, _ = fmt.Fprintln(w, "not for", r.URL, r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), r.Header.Get("X-Other"))
	}))
	t.Cleanup(receiver.Close)
	dir := t.TempDir()
	t.Setenv("PLANTED_TOKEN", plantedSecrets["a NATS token in a variable"])
	cfg := loadPlanted(t, dir, receiver.URL)
	fillJournal(t, cfg, dir)

	lines := &logs.Buffer{}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg, "dev", lines) }()
	admin := awaitLine(t, lines, regexp.MustCompile(`admin=(\S+)`))
	shown := map[string]string{}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	waitForText(t, "http://"+admin+"/readyz", "all webhooks", regexp.MustCompile("(?s)(the webhook answers 403.*){5}"))
	for _, path := range []string{"/readyz", "/readyz?verbose", "/", "/metrics"} {
		shown[path] = waitForText(t, "http://"+admin+path, path, regexp.MustCompile("."))
	}
	stop()
	if err := <-done; err != nil {
		shown["the error"] = err.Error()
	}
	shown["the log"] = lines.String()
	readFiles(t, filepath.Join(dir, "data"), shown)
	for where, text := range shown {
		for what, secret := range plantedSecrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s is in %s", what, where)
			}
		}
	}
}

// loadPlanted writes and reads a configuration with all secrets.
func loadPlanted(t *testing.T, dir, receiver string) *config.Config {
	t.Helper()
	for name, text := range map[string]string{
		"bearer": plantedSecrets["a bearer token"], "header": plantedSecrets["a header from a file"],
		"kubeconfig": awayKubeconfig,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(`
cluster: {kubeconfig: %[1]s/kubeconfig}
resources: [{select: [pods], redact: hmac}]
redaction: {key: %[3]q}
sinks:
  - {name: path, format: cloudevents, webhook: {url: "%[2]s/hooks/%[4]s/x"}}
  - {name: query, format: cloudevents, webhook: {url: "%[2]s/?signature=%[5]s"}}
  - {name: header, format: cloudevents, webhook: {url: "%[2]s", headers: [{name: X-Api-Key, value: %[6]s}]}}
  - {name: file, format: cloudevents, webhook: {url: "%[2]s", headers: [{name: X-Other, value: {file: %[1]s/header}}]}}
  - {name: bearer, format: cloudevents, webhook: {url: "%[2]s", bearerToken: {file: %[1]s/bearer}}}
  - name: bus
    nats: {url: "nats://127.0.0.1:1", user: me, password: %[7]s, stream: S, subject: "k8s.{name}", allowCleartextCredentials: true}
  - name: bus2
    nats: {url: "nats://127.0.0.1:1", token: {env: PLANTED_TOKEN}, stream: S, subject: "k8s.{name}", allowCleartextCredentials: true}
  - name: main
    kafka: {brokers: ["127.0.0.1:1"], topic: k8s, sasl: {mechanism: plain, username: me, password: %[8]s, allowCleartextCredentials: true}}
journal: {dir: %[1]s/data}
admin: {listen: "127.0.0.1:0"}
delivery: {drainTimeout: 0s}
log: {level: debug}
`, dir, receiver, plantedSecrets["a redaction key"], plantedSecrets["a part of the webhook's path"], plantedSecrets["the webhook's query"], plantedSecrets["a header"],
		plantedSecrets["a NATS password"], plantedSecrets["a Kafka password"])
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// fillJournal gives the journal a change to deliver.
func fillJournal(t *testing.T, cfg *config.Config, dir string) {
	t.Helper()
	var names []string
	for _, s := range cfg.Sinks {
		names = append(names, s.Name)
	}
	j, stop := runJournal(t, filepath.Join(dir, "data"), names...)
	defer stop()
	pods := event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	mustAppend(t, j, event.Observation{Resource: pods, Scope: "pods", Position: "5", Changes: []*event.Change{{
		Type: event.Added, Delta: event.DeltaAdded, Cluster: "c", Resource: pods, Namespace: "ns", Name: "web", UID: "u", ResourceVersion: "5",
		ObservedAt: time.Unix(1767323045, 0).UTC(), After: []byte(`{"kind":"Pod"}`),
	}}})
}

// awaitLine waits for a line and returns its first submatch.
func awaitLine(t *testing.T, lines *logs.Buffer, what *regexp.Regexp) string {
	t.Helper()
	for {
		text, more := lines.StringAndNext()
		if m := what.FindStringSubmatch(text); m != nil {
			return m[1]
		}
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatalf("%v is not in the log:\n%s", what, text)
		}
	}
}

// readFiles reads every file of a directory, and checks that only the owner has access.
func readFiles(t *testing.T, dir string, into map[string]string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("%s has the mode %v", path, mode)
		}
		text, err := os.ReadFile(path)
		into[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMaskRemovesSecretsAndKeepsWords(t *testing.T) {
	m := newMask([]string{"abcd", "a-long-secret-value", "ab"})
	for text, want := range map[string]string{
		"abcd": "***", "abcdef": "abcdef", "it is abcd, ab": "it is ***, ab", "xa-long-secret-valuex": "x***x", "": "",
	} {
		if got := m.maskText(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	err := errors.New("password a-long-secret-value is wrong")
	if masked := m.maskError(err); !errors.Is(masked, err) || masked.Error() != "password *** is wrong" {
		t.Errorf("%v", masked)
	}
}

func TestDurationsInLogsHaveAUnit(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		lines := &logs.Buffer{}
		log := newLogger(config.Log{Level: "info", Format: format}, new(slog.LevelVar), mask{}, lines)
		log.Info("watching", "lasted", 69*time.Millisecond)
		if !strings.Contains(lines.String(), "69ms") {
			t.Errorf("%s: %s", format, lines)
		}
	}
}
