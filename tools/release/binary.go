package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
)

// builder builds the exporter from a checkout.
type builder struct {
	source  string // root of the checkout
	version string
}

// binary is one built program.
type binary struct {
	path string
	text []byte
	info *debug.BuildInfo
}

// build compiles the exporter into a directory of the caller. The result depends on the sources, the version and the
// toolchain alone: paths are trimmed, and the state of the checkout is not written into it.
func (b builder) build(ctx context.Context, dir string, p platform) (binary, error) {
	name := "exporter"
	if p.os == "windows" {
		name += ".exe"
	}
	path, err := filepath.Abs(filepath.Join(dir, p.os+"_"+p.arch, name))
	if err != nil {
		return binary{}, err
	}
	compile := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+b.version, "-o", path, "./cmd/exporter")
	compile.Dir = b.source
	compile.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOFLAGS=", "GOWORK=off")
	if out, err := compile.CombinedOutput(); err != nil {
		return binary{}, fmt.Errorf("go build for %s: %w\n%s", p, err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return binary{}, err
	}
	info, err := buildinfo.ReadFile(path)
	return binary{path, text, info}, err
}
