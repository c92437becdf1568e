package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func try(t *testing.T, args ...string) (code exit.Code, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = executeCommand(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	writeFile(t, path, content)
	return path
}

func TestValidateWritesAllThatIsWrongAsJSON(t *testing.T) {
	path := write(t, "bad.yaml", "cluster: {nam: dev}\nsinks: [{name: out, stdout: {}}]\nresources: [{select: [pods], captur: full}]\n")
	code, stdout, stderr := try(t, "validate", "--config", path, "-o", "json")
	var found validation
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || code != exit.Usage {
		t.Fatalf("exit %d, %v in %s", code, err, stdout)
	}
	if p := found.Problems; len(p) != 2 || p[0].Path != "cluster.nam" || p[0].Line != 1 || p[1].Path != "resources[0].captur" {
		t.Errorf("%+v", p)
	}
	if strings.Count(stderr, "\n") != 2 {
		t.Errorf("errors for people: %s", stderr)
	}
}

func TestBadUsageExitsTwo(t *testing.T) {
	for name, args := range map[string][]string{
		"no command":         {},
		"unknown command":    {"export"},
		"unknown flag":       {"run", "--conf", "x"},
		"nothing to tap":     {"tap"},
		"tap of no resource": {"tap", "--select", "pods."},
		"tap, wrong filter":  {"tap", "--select", "pods", "--filter", "object.a"},
		"tap, wrong labels":  {"tap", "--select", "pods", "--selector", "a in b"},
		"tap, wrong form":    {"tap", "--select", "pods", "-o", "text"},
		"no config":          {"run"},
		"one argument extra": {"validate", "--config", "x", "y"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := try(t, args...)
			if code != exit.Usage || stdout != "" || !strings.Contains(stderr, "exporter: ") {
				t.Errorf("exit %d, stdout %q, stderr %q; want exit 2 and a message", code, stdout, stderr)
			}
		})
	}
}

func TestAMistypedCommandIsNamedWithTheOneThatWasMeant(t *testing.T) {
	for _, args := range [][]string{{"runn", "-c", "x"}, {"journal", "stta", "--dir", "x"}, {"deadletters", "lst", "--sink=x", "--all"}} {
		_, _, stderr := try(t, args...)
		want := map[string]string{"runn": "run", "stta": "stat", "lst": "list"}
		wrong := args[0]
		if len(args) > 3 {
			wrong = args[1]
		}
		if !strings.Contains(stderr, `unknown command "`+wrong+`"`) || !strings.Contains(strings.ReplaceAll(stderr, wrong, ""), want[wrong]) {
			t.Errorf("%q: %s", args, stderr)
		}
	}
}

func TestFlagsOfTapAreNamedAsFlags(t *testing.T) {
	for flag, args := range map[string][]string{
		"--select[0]: ":    {"--select", "pods."},
		"--namespace[0]: ": {"--select", "pods", "-n", "A"},
		"--selector: ":     {"--select", "pods", "-l", "a in b"},
		"--filter: ":       {"--select", "pods", "--filter", "1 +"},
	} {
		if _, _, stderr := try(t, append([]string{"tap"}, args...)...); !strings.HasPrefix(stderr, "exporter: "+flag) {
			t.Errorf("%q: %s", args, stderr)
		}
	}
}

func TestGoodConfigurationValidates(t *testing.T) {
	path := write(t, "good.yaml", "resources: [{select: [pods]}]\nsinks: [{name: out, stdout: {}}]\n")
	code, stdout, stderr := try(t, "validate", "--config", path)
	if code != exit.OK || !strings.Contains(stdout, "ok (rules: 1, sinks: 1)") || stderr != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestBusyAdminAddressIsTheEnvironmentsFault(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	taken := l.Addr().String()
	kubeconfig := kubeconfigOf(t, "http://127.0.0.1:1")
	path := write(t, "c.yaml", "cluster: {kubeconfig: "+kubeconfig+"}\nresources: [{select: [pods]}]\nsinks: [{name: out, stdout: {path: "+
		filepath.Join(t.TempDir(), "out")+"}}]\njournal: {dir: "+t.TempDir()+"}\nadmin: {listen: \""+taken+"\"}\n")
	code, _, stderr := try(t, "run", "--config", path)
	if code != exit.Environment || !strings.Contains(stderr, "admin.listen") || !strings.Contains(stderr, taken) {
		t.Errorf("exit %d, stderr %q; want exit 3 and the address named", code, stderr)
	}
}

func TestVersionIsPrinted(t *testing.T) {
	if code, stdout, _ := try(t, "version"); code != exit.OK || !strings.HasPrefix(stdout, "exporter "+version+" (go") {
		t.Errorf("exit %d, %q", code, stdout)
	}
}

func TestWithoutAClusterTheJournalIsNotTouched(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "absent"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	journal := filepath.Join(t.TempDir(), "journal")
	path := write(t, "c.yaml", "resources: [{select: [pods]}]\nsinks: [{name: out, stdout: {path: "+
		filepath.Join(t.TempDir(), "out")+"}}]\njournal: {dir: "+journal+"}\n")
	code, _, stderr := try(t, "run", "--config", path)
	if code != exit.Environment || !strings.Contains(stderr, "no cluster to watch") {
		t.Errorf("exit %d, stderr %q; want exit 3 and what to set", code, stderr)
	}
	if _, err := os.Stat(journal); !os.IsNotExist(err) {
		t.Errorf("the journal's directory was made: %v", err)
	}
}
