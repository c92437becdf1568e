package build

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Kcat returns the path of kcat, the Kafka reader on librdkafka, and the directory of its shared libraries, "" where they
// are the system's. One that is on PATH is used, else one of Debian's.
func Kcat(ctx context.Context) (program, libraries string, err error) {
	if program, err := exec.LookPath("kcat"); err == nil {
		return program, "", nil
	}
	dir, err := debian{title: "kcat", takes: "about 10 seconds, 12 MB", packages: []string{"kcat", "librdkafka1", "libyajl2"}}.provide(ctx)
	if err != nil {
		return "", "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "usr", "lib", "*-linux-gnu*"))
	if err != nil {
		return "", "", err
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("the libraries of kcat are in one of %q; delete %s and try again", found, dir)
	}
	return filepath.Join(dir, "usr", "bin", "kcat"), found[0], nil
}
