package deploy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

// TestTheConfigurationOfTheComposeFileIsValid loads it with a kubeconfig in the place of the one that the API server writes.
func TestTheConfigurationOfTheComposeFileIsValid(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("compose", "exporter.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kubeconfig, path := filepath.Join(dir, "config"), filepath.Join(dir, "exporter.yaml")
	const inContainer = "/kubeconfig/config"
	if !bytes.Contains(text, []byte(inContainer)) {
		t.Fatalf("the configuration does not name %s", inContainer)
	}
	for name, content := range map[string][]byte{
		kubeconfig: []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:6443"}}],` +
			`"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u"}]}`),
		path: bytes.ReplaceAll(text, []byte(inContainer), []byte(kubeconfig)),
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(path)
	if err != nil || len(cfg.Warnings) > 0 {
		t.Errorf("%v, warnings %v", err, cfg.Warnings)
	}
}
