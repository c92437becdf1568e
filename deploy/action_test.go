package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// actionStep is a step of a composite action, see docs.github.com/actions/reference/workflows-and-actions/metadata-syntax.
type actionStep struct {
	Uses  string
	With  map[string]string
	Shell string
	Run   string
	Env   map[string]string
}

// TestTheActionValidatesConfigurations runs the steps of the action as a runner does.
func TestTheActionValidatesConfigurations(t *testing.T) {
	t.Parallel()
	const dir = "github-action"
	text, err := os.ReadFile(filepath.Join(dir, "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var action struct {
		Name, Description string
		Inputs            map[string]struct {
			Description string
			Required    bool
		}
		Runs struct {
			Using string
			Steps []actionStep
		}
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&action); err != nil {
		t.Fatal(err)
	}
	if action.Name == "" || action.Description == "" || action.Runs.Using != "composite" || len(action.Runs.Steps) == 0 {
		t.Errorf("the action is %+v", action)
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	runSteps := func(configuration string) (output string, err error) {
		values := map[string]string{"github.action_path": path, "inputs.config": configuration}
		for _, step := range action.Runs.Steps {
			if step.Uses != "" { // installs Go
				checkGoFiles(t, step, values)
				continue
			}
			c := exec.CommandContext(t.Context(), step.Shell, "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", replaceExpressions(t, step.Run, values))
			c.Env = append(c.Environ(), "RUNNER_TEMP="+temp)
			for name, value := range step.Env {
				c.Env = append(c.Env, name+"="+replaceExpressions(t, value, values))
			}
			text, err := c.CombinedOutput()
			if output += string(text); err != nil {
				return output, err
			}
		}
		return output, nil
	}
	if output, err := runSteps(filepath.Join("..", "configs", "stdout.yaml")); err != nil {
		t.Errorf("a good configuration: %v\n%s", err, output)
	}
	bad := filepath.Join(temp, "a b.yaml")
	if err := os.WriteFile(bad, []byte("resources: [{select: [pods]}]\nsinks: [{name: out, stdout: {}}]\njournal: {dir: j, maxByte: 1Gi}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := runSteps(bad); err == nil || !strings.Contains(output, "a b.yaml:3") || !strings.Contains(output, "maxBytes") {
		t.Errorf("a bad configuration: %v\n%s", err, output)
	}
}

// checkGoFiles checks that the files exist that setup-go reads.
func checkGoFiles(t *testing.T, step actionStep, values map[string]string) {
	t.Helper()
	for _, key := range []string{"go-version-file", "cache-dependency-path"} {
		if _, err := os.Stat(replaceExpressions(t, step.With[key], values)); err != nil {
			t.Errorf("%s: %s: %v", step.Uses, key, err)
		}
	}
}

var expression = regexp.MustCompile(`\$\{\{\s*([\w.]+)\s*\}\}`)

// replaceExpressions replaces the expressions of a workflow. An unknown one fails the test.
func replaceExpressions(t *testing.T, text string, values map[string]string) string {
	t.Helper()
	return expression.ReplaceAllStringFunc(text, func(found string) string {
		value, known := values[expression.FindStringSubmatch(found)[1]]
		if !known {
			t.Errorf("unknown expression %s", found)
		}
		return value
	})
}
