package exporter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// BuildAhead builds the exporter as Build does, but with a clock that is ahead, and returns the program's path. It is the
// same program with another time.Now: one that is linked statically asks the kernel, and no library that a test could put
// between.
func BuildAhead(ctx context.Context, dir string, by time.Duration) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	ahead := strings.Replace(string(text), reads, fmt.Sprintf("%s\tsec += %d\n", reads, by/time.Second), 1)
	if ahead == string(text) {
		return "", fmt.Errorf("%s does not begin time.Now with %q any more", original, reads)
	}
	changed, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	content, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(changed, []byte(ahead), 0o600), os.WriteFile(overlay, content, 0o600)); err != nil {
		return "", err
	}
	return compile(ctx, filepath.Join(dir, "exporter-ahead"), "-overlay", overlay)
}
