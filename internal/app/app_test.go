package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatKeepsTheSourceFromBeginningIsTheEnvironmentsFault(t *testing.T) {
	for name, c := range map[string]struct {
		cause       error
		environment bool
	}{
		"the cluster has no name":  {&source.StartError{Err: errors.New("forbidden")}, true},
		"forbidden from the start": {&source.ForbiddenError{AtStart: true, Err: errors.New("403")}, true},
		"a right that was taken":   {&source.ForbiddenError{Err: errors.New("403")}, false},
		"a journal that failed":    {errors.New("disk"), false},
	} {
		code, _ := exit.CodeOf(failedRun(fmt.Errorf("source: %w", c.cause), c.cause))
		if (code == exit.Environment) != c.environment {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
}
