package build

import (
	"context"
	"os/exec"
	"path/filepath"
)

// Bsdtar returns the path of bsdtar, the reader of archives on libarchive, and the environment variables that it needs: one
// that is on PATH, else Debian's.
func Bsdtar(ctx context.Context) (program string, env []string, err error) {
	if program, err := exec.LookPath("bsdtar"); err == nil {
		return program, nil, nil
	}
	packages := []string{"libarchive-tools", "libarchive13"}
	dir, err := debian{title: "bsdtar", takes: "about 10 seconds, 1 MB", packages: packages}.provide(ctx)
	if err != nil {
		return "", nil, err
	}
	libraries, err := newest(filepath.Join(dir, "usr", "lib", "*-linux-gnu"))
	return filepath.Join(dir, "usr", "bin", "bsdtar"), []string{"LD_LIBRARY_PATH=" + libraries}, err
}

// Umoci returns the path of umoci, which unpacks images from OCI layouts without a daemon: one that is on PATH, else
// Debian's. It needs no environment variables.
func Umoci(ctx context.Context) (program string, env []string, err error) {
	if program, err := exec.LookPath("umoci"); err == nil {
		return program, nil, nil
	}
	dir, err := debian{title: "umoci", takes: "about 10 seconds, 6 MB", packages: []string{"umoci"}}.provide(ctx)
	return filepath.Join(dir, "usr", "bin", "umoci"), nil, err
}
