package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// axeVersion is that of axe-core, which judges whether a page can be used by everybody.
const axeVersion = "4.14.1"

// Axe returns the path of axe-core, a script for a browser. npm fetches it, as its own settings define.
func Axe(ctx context.Context) (string, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", fmt.Errorf("%w; install npm", err)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir, err := artifact{
		title: "axe-core",
		takes: "a few seconds, 3 MB",
		path:  filepath.Join(cache, "axe-core", axeVersion),
		make: func(ctx context.Context, temporary, log string) error {
			if err := os.MkdirAll(temporary, 0o755); err != nil {
				return err
			}
			install := []string{"install", "--prefix", temporary, "--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "axe-core@" + axeVersion}
			return run(ctx, "npm", npm, install, temporary, nil, log)
		},
	}.provide(ctx)
	return filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"), err
}
