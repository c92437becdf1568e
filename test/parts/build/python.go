package build

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Python returns the Python interpreter of a virtual environment with the packages of test/python/requirements.txt, which
// names each by version and hash. pip fetches them, as its own settings define.
func Python(ctx context.Context) (string, error) {
	return virtualEnvironment(ctx, "the Python packages of tests", "30 MB", "python", "test/python/requirements.txt")
}

// ClickHouse returns the same of test/clickhouse/requirements.txt: ClickHouse as a Python module.
func ClickHouse(ctx context.Context) (string, error) {
	return virtualEnvironment(ctx, "the embedded ClickHouse", "200 MB", "clickhouse", "test/clickhouse/requirements.txt")
}

// S3 returns the same of test/s3/requirements.txt: a server that speaks S3 and keeps everything in memory.
func S3(ctx context.Context) (string, error) {
	return virtualEnvironment(ctx, "the S3 server of tests", "60 MB", "s3", "test/s3/requirements.txt")
}

// PyIceberg returns the same of test/iceberg/requirements.txt: a reader of Iceberg's tables, and DuckDB.
func PyIceberg(ctx context.Context) (string, error) {
	return virtualEnvironment(ctx, "PyIceberg", "100 MB", "pyiceberg", "test/iceberg/requirements.txt")
}

// virtualEnvironment installs what a list of requirements names into the cache and returns the interpreter.
func virtualEnvironment(ctx context.Context, title, size, name, list string) (string, error) {
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
	requirements := filepath.Join(root, filepath.FromSlash(list))
	key, err := digest([]string{requirements}, base)
	if err != nil {
		return "", fmt.Errorf("%s: %w", list, err)
	}
	dir, err := artifact{
		title: title,
		takes: "about 20 seconds, " + size,
		path:  filepath.Join(cache, name, key),
		make: func(ctx context.Context, temporary, log string) error {
			if err := run(ctx, "python3", base, []string{"-m", "venv", temporary}, root, nil, log); err != nil {
				return err
			}
			install := []string{"-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:",
				"--require-hashes", "--no-deps", "-r", requirements}
			return run(ctx, "pip", interpreter(temporary), install, root, nil, log)
		},
	}.provide(ctx)
	return interpreter(dir), err
}

func interpreter(dir string) string { return filepath.Join(dir, "bin", "python") }
