package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kubecdc/kubecdc/test/bench/verify"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// stage is where a system runs: the files and addresses of its surroundings.
type stage struct {
	dir        string // of this system alone
	kubeconfig string
	broker     string
}

// system is what is measured.
type system struct {
	name    string
	title   string
	decode  func(value []byte) (verify.Record, error) // nil: the records are not compared
	profile string                                    // file for a profile of the changes; empty: none
	// command prepares the environment and returns the command to start.
	command func(stage) (path string, args []string, err error)
}

// baselineSystem is this program's own baseline part.
func baselineSystem(self string, dropManagedFields bool) system {
	title := "informer + json.Marshal + kafka.Writer, no journal"
	if dropManagedFields {
		title += ", managedFields dropped"
	}
	return system{
		name: "baseline", title: title, decode: verify.Baseline,
		command: func(s stage) (string, []string, error) {
			args := []string{"baseline", "-kubeconfig", s.kubeconfig, "-broker", s.broker}
			if dropManagedFields {
				args = append(args, "-drop-managed-fields")
			}
			return self, args, nil
		},
	}
}

// floorSystem is this program's own floor part. Its records are counted, not read.
func floorSystem(self string) system {
	return system{
		name: "floor", title: "watch frames copied to Kafka, neither read nor compressed",
		command: func(s stage) (string, []string, error) {
			return self, []string{"floor", "-kubeconfig", s.kubeconfig, "-broker", s.broker}, nil
		},
	}
}

// exporterSystem is the product with its default settings.
func exporterSystem(binary string) system {
	return exporterWith(binary, "exporter", "exporter, journal on, fsync before anything is sent", "")
}

// exporterWith is the product with more keys of its one rule.
func exporterWith(binary, name, title, rule string) system {
	return system{
		name: name, title: title, decode: verify.Native,
		command: func(s stage) (string, []string, error) {
			path := filepath.Join(s.dir, "exporter.yaml")
			text := fmt.Sprintf(`cluster: {kubeconfig: %q}
resources:
  - {select: [pods, events]%s}
sinks:
  - name: kafka
    kafka: {brokers: [%q], topic: "k8s.{group}.{resource}"}
journal: {dir: %q, sync: always}
admin: {listen: "127.0.0.1:0"}
`, s.kubeconfig, rule, s.broker, filepath.Join(s.dir, "journal"))
			return binary, []string{"run", "--config", path}, os.WriteFile(path, []byte(text), 0o644)
		},
	}
}

// buildExporter builds the product from the checkout this module stands in, as it is released: what a program is linked
// with is part of its memory.
//
// hook is the text of a file that is built into it; empty: none.
func buildExporter(ctx context.Context, dir, hook string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubecdc/kubecdc").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("run it in test/bench, or give -exporter: go list: %w: %s", err, out)
	}
	root, binary := strings.TrimSpace(string(out)), filepath.Join(dir, "bin", "exporter")
	args := []string{"-C", root, "build", "-trimpath", "-o", binary}
	if hook == "" {
		args = append(args, "-ldflags", "-s -w")
	} else {
		overlay, err := writeOverlay(dir, filepath.Join(root, "cmd", "exporter", "bench_hook.go"), hook)
		if err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	}
	build := exec.CommandContext(ctx, "go", append(args, "./cmd/exporter")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err = build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the exporter: %w: %s", err, out)
	}
	return binary, nil
}

// writeOverlay writes what lets the go command see a file that does not exist, and returns its path.
func writeOverlay(dir, path, text string) (string, error) {
	file, overlay := filepath.Join(dir, "hook.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: file}})
	if err != nil {
		return "", err
	}
	return overlay, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, []byte(text), 0o644), os.WriteFile(overlay, replace, 0o644))
}

// start starts the system on its stage.
func (s system) start(ctx context.Context, at stage) (*process.Process, error) {
	path, args, err := s.command(at)
	if err != nil {
		return nil, err
	}
	return process.Start(ctx, process.Options{
		Name: s.name, Path: path, Args: args, Env: append(os.Environ(), "BENCH_PROFILE="+s.profile),
		Log: filepath.Join(at.dir, s.name+".log"),
	})
}
