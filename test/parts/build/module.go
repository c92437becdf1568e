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

// prometheusOperator is the version of the type definitions that validate the manifests.
const prometheusOperator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"

// PrometheusOperatorCRDs returns the directory with the CustomResourceDefinitions of the Prometheus operator, one a file,
// from its Go module.
func PrometheusOperatorCRDs(ctx context.Context) (string, error) {
	dir, err := moduleDir(ctx, prometheusOperator)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "example", "prometheus-operator-crd"), nil
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
