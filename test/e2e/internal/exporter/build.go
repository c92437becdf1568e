package exporter

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/kubecdc/kubecdc/test/parts/build"
)

// Build builds the exporter from the working tree into a directory and returns the program's path.
// KUBECDC_E2E_RACE=1 adds the race detector. KUBECDC_E2E_PROGRAM is the path of a program to test in the place of that, such
// as the one of an earlier version.
func Build(ctx context.Context, dir string) (string, error) {
	if given := os.Getenv("KUBECDC_E2E_PROGRAM"); given != "" {
		return given, nil
	}
	return compile(ctx, filepath.Join(dir, "exporter"))
}

// compile builds the program of that path.
func compile(ctx context.Context, program string, flags ...string) (string, error) {
	root, err := build.Root()
	if err != nil {
		return "", err
	}
	args, env := []string{"build", "-trimpath", "-ldflags", "-s -w", "-o", program}, "CGO_ENABLED=0" // as it is released
	if os.Getenv("KUBECDC_E2E_RACE") == "1" {
		args, env = []string{"build", "-race", "-o", program}, "CGO_ENABLED=1"
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat(args, flags, []string{"./cmd/exporter"})...)
	cmd.Env = append(os.Environ(), env)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the exporter: %w\n%s", err, output)
	}
	return program, nil
}
