package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// operators are the Go modules with CustomResourceDefinitions of operators, and where in them these are, one a file.
var operators = map[string]struct{ module, dir string }{
	"argo-cd":             {"github.com/argoproj/argo-cd/v2@v2.14.21", "manifests/crds"},
	"cert-manager":        {"github.com/cert-manager/cert-manager@v1.21.2", "deploy/crds"},
	"external-secrets":    {"github.com/external-secrets/external-secrets@v1.3.2", "config/crds/bases"},
	"keda":                {"github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases"},
	"prometheus-operator": {"github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd"},
}

// OperatorCRDs returns the directory with the CustomResourceDefinitions of an operator, one a file, from its Go module.
func OperatorCRDs(ctx context.Context, operator string) (string, error) {
	from, found := operators[operator]
	if !found {
		return "", fmt.Errorf("no module of the operator %q is known", operator)
	}
	dir, err := moduleDir(ctx, from.module)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.FromSlash(from.dir)), nil
}

// moduleDir fetches a module at a version and returns its directory in Go's module cache.
func moduleDir(ctx context.Context, module string) (string, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Env = buildEnvironment(os.Environ())
	out, err := download.Output()
	var answer struct{ Dir, Error string }
	if wrong := json.Unmarshal(out, &answer); wrong != nil {
		return "", fmt.Errorf("go mod download %s: %w", module, errors.Join(err, wrong))
	}
	if answer.Error != "" || err != nil {
		return "", fmt.Errorf("go mod download %s: %s (%w)", module, answer.Error, err)
	}
	return answer.Dir, nil
}
