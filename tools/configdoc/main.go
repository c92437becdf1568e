// Command configdoc writes docs/configuration.md, configs/reference.yaml and a JSON Schema, for editors and for the chart,
// from the configuration structs, their comments and their defaults. Run it by "go generate ./internal/config"; a test fails
// while the files in the tree differ.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// root is the top of the repository as seen from internal/config, where go generate runs.
const root = "../.."

// files are what configdoc writes, by path below the top of the repository.
var files = map[string]func(keys []key) []byte{
	"docs/configuration.md":  renderPage,
	"configs/reference.yaml": renderReference,
	schemaFile:               renderSchema,
	chartSchemaFile:          renderChartSchema,
}

func main() {
	if err := writeFiles(root); err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

func writeFiles(root string) error {
	keys, err := collectKeys(root)
	if err != nil {
		return err
	}
	for name, render := range files {
		if err := os.WriteFile(filepath.Join(root, name), render(keys), 0o644); err != nil {
			return err
		}
	}
	return nil
}
