package controlplane

import (
	"os"
	"strings"
	"testing"
)

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
