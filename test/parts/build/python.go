package build

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Python returns the Python interpreter of a virtual environment with the packages of test/python/requirements.txt, which
// names each by version and hash. pip fetches them, from where its own settings say.
func Python(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	base, err := exec.LookPath("python3")
	if err != nil {
		return "", fmt.Errorf("%w; install Python 3.10 or later and put it on PATH", err)
	}
	requirements := filepath.Join(root, "test", "python", "requirements.txt")
	key, err := digest([]string{requirements}, base)
	if err != nil {
		return "", fmt.Errorf("list of Python packages: %w", err)
	}
	dir, err := artifact{
		title: "the Python packages of tests",
		takes: "about 20 seconds, 30 MB",
		path:  filepath.Join(cache, "python", key),
		make: func(ctx context.Context, temporary, log string) error {
			if err := run(ctx, "python3", base, []string{"-m", "venv", temporary}, root, nil, log); err != nil {
				return err
			}
			install := []string{"-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes", "-r", requirements}
			return run(ctx, "pip", interpreter(temporary), install, root, nil, log)
		},
	}.provide(ctx)
	return interpreter(dir), err
}

func interpreter(dir string) string { return filepath.Join(dir, "bin", "python") }
