package build

import (
	"context"
	"os/exec"
	"path/filepath"
)

// Kubectl returns the path of kubectl: one that is on PATH, else Debian's, which is old and does what pages ask of it.
func Kubectl(ctx context.Context) (string, error) {
	if program, err := exec.LookPath("kubectl"); err == nil {
		return program, nil
	}
	dir, err := debian{title: "kubectl", takes: "about 10 seconds, 9 MB", packages: []string{"kubernetes-client"}}.provide(ctx)
	return filepath.Join(dir, "usr", "bin", "kubectl"), err
}
