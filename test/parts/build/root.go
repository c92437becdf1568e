package build

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const modulePath = "github.com/kubecdc/kubecdc"

// Root returns the root directory of the repository: the nearest directory from the working directory upwards with a
// go.mod that declares this project's module. A test's working directory is its package's, so it is always found there.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if declaresModule(filepath.Join(dir, "go.mod")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod of module %s in %s or above; run from within a checkout", modulePath, start)
		}
	}
}

func declaresModule(gomod string) bool {
	text, err := os.ReadFile(gomod)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == "module "+modulePath {
			return true
		}
	}
	return false
}
