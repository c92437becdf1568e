package build

import (
	"context"
	"os/exec"
	"path/filepath"
)

// Promtool returns the path of promtool, which judges rules and metrics of Prometheus: one that is on PATH, else Debian's.
func Promtool(ctx context.Context) (string, error) { return ofPrometheus(ctx, "promtool") }

// Prometheus returns the path of Prometheus itself, found as promtool is.
func Prometheus(ctx context.Context) (string, error) { return ofPrometheus(ctx, "prometheus") }

func ofPrometheus(ctx context.Context, name string) (string, error) {
	if program, err := exec.LookPath(name); err == nil {
		return program, nil
	}
	dir, err := debian{title: "promtool", takes: "about 10 seconds, 20 MB", packages: []string{"prometheus"}}.provide(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "usr", "bin", name), nil
}
