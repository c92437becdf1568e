package app

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

func TestMain(m *testing.M) { leaks.MainWithServers(m, sharedPlane.Stop) }

// awayKubeconfig leads to an API server that is away.
const awayKubeconfig = `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
	"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u"}]}`

func writeTemp(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStartFailureExitsWithEnvironmentCode(t *testing.T) {
	for name, c := range map[string]struct {
		cause       error
		environment bool
	}{
		"the cluster has no name":  {&source.StartError{Err: errors.New("forbidden")}, true},
		"forbidden from the start": {&source.ForbiddenError{AtStart: true, Err: errors.New("403")}, true},
		"a right that was taken":   {&source.ForbiddenError{Err: errors.New("403")}, false},
		"a journal that failed":    {errors.New("disk"), false},
	} {
		code, _ := exit.CodeOf(withExitCode(fmt.Errorf("source: %w", c.cause), c.cause))
		if (code == exit.Environment) != c.environment {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
}

// TestNothingIsCreatedBeforeAllFilesAreRead lets a credential vanish between the check of the configuration and its use.
func TestNothingIsCreatedBeforeAllFilesAreRead(t *testing.T) {
	t.Chdir(t.TempDir())
	for file, content := range map[string]string{
		"kubeconfig": awayKubeconfig,
		"config.yaml": `
cluster: {kubeconfig: kubeconfig}
resources: [{select: [pods]}]
sinks:
  - {name: file, stdout: {path: lines}}
  - {name: main, kafka: {brokers: ["127.0.0.1:1"], topic: t, tls: {enabled: true, ca: ca}}}
`,
		"ca": "-----BEGIN CERTIFICATE-----\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load("config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove("ca"); err != nil {
		t.Fatal(err)
	}
	err = newApp("test", mask{}, slog.New(slog.DiscardHandler), &slog.LevelVar{}).run(t.Context(), cfg)
	if code, _ := exit.CodeOf(err); code != exit.Environment || !strings.Contains(err.Error(), "ca: no such file") {
		t.Errorf("%v", err)
	}
	left, err := filepath.Glob("*")
	if want := []string{"config.yaml", "kubeconfig"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("there are %v (%v), want %v", left, err, want)
	}
}

// TestLinesOfOtherProgramsAreInTheLog in its form, whole, and until the program ends.
func TestLinesOfOtherProgramsAreInTheLog(t *testing.T) {
	var log logs.Buffer
	restore := logStandardError(logs.WithoutTime(&log))
	plugin := exec.Command("/bin/sh", "-c", `echo "the session has expired" >&2; head -c 100000 /dev/zero | tr '\0' x >&2; echo >&2; printf 'no "newline"' >&2`)
	plugin.Stderr = os.Stderr // as client-go sets it
	err := plugin.Run()
	if restore(); err != nil {
		t.Fatal(err)
	}
	const begins = `level=WARN msg="another program, or a library, has written to the standard error" text=`
	got := slices.DeleteFunc(log.Lines(), func(line string) bool { return strings.Contains(line, "xxx") }) // what is left of a long one
	if want := []string{begins + `"the session has expired"`, begins + `"no \"newline\""`}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
