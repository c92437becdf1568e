package credentials

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestASecretInAFileIsReadEachTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	s := InFile(path)
	if _, err := s.Read(); err == nil {
		t.Error("a file that is not there was read")
	}
	for content, want := range map[string]string{"hunter2\n": "hunter2", "two\nlines \r\n": "two\nlines ", "plain": "plain"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(); got != want || err != nil {
			t.Errorf("%q is read as %q, %v", content, got, err)
		}
	}
	for _, content := range []string{"", " \n", strings.Repeat("x", maxSecretBytes+1)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%d bytes are read as %d, %v", len(content), len(got), err)
		}
	}
}

func TestNoFormatterShowsASecret(t *testing.T) {
	type config struct{ Password Secret }
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if shown := fmt.Sprintf(format, config{Text("hunter2")}); strings.Contains(shown, "hunter2") {
			t.Errorf("%s shows %s", format, shown)
		}
	}
}
