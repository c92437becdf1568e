// Command gen writes the files of package monitoring.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/deploy/monitoring"
)

func main() {
	if err := write(filepath.Join("..", "..")); err != nil { // go generate runs in the package's directory
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := monitoring.Files()
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
