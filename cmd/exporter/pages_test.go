package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

var (
	yamlBlock  = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	secretFile = regexp.MustCompile(`\{file: [^}]*\}`)
	topKey     = regexp.MustCompile(`(?m)^([A-Za-z]+):`)
)

// sections are those of the configuration. A block with other keys belongs to another program.
var sections = []string{
	"admin", "audit", "cluster", "delivery", "election", "journal", "log", "redaction", "resources", "routes", "sinks", "state",
}

// TestConfigurationsOfThePagesAreAccepted loads every block of the pages that has sections of the configuration only. One
// that shows a part gets resources and sinks, and files that it names exist.
func TestConfigurationsOfThePagesAreAccepted(t *testing.T) {
	key, loaded := write(t, "key", "0123456789abcdef, of a page"), 0
	err := fs.WalkDir(os.DirFS("../.."), "docs", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		page, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			return err
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(page), -1) {
			text, has := block[1], map[string]bool{}
			for _, m := range topKey.FindAllStringSubmatch(text, -1) {
				has[m[1]] = true
			}
			if len(has) == 0 || !onlySections(has) {
				continue
			}
			if !has["resources"] {
				text += "\nresources: [{select: ['*', secrets, events, leases.coordination.k8s.io]}]\n"
			}
			if !has["sinks"] {
				text += "\nsinks: [{name: main, kafka: {brokers: ['127.0.0.1:9092'], topic: t}}, {name: audit, stdout: {}}]\n"
			}
			text = secretFile.ReplaceAllString(text, "{file: "+key+"}")
			loaded++
			if _, err := config.Load(write(t, "page.yaml", text)); err != nil {
				t.Errorf("%s: %v\n%s", path, err, text)
			}
		}
		return nil
	})
	if err != nil || loaded < 10 {
		t.Errorf("%d blocks: %v", loaded, err)
	}
}

func onlySections(has map[string]bool) bool {
	for key := range has {
		if !slices.Contains(sections, key) {
			return false
		}
	}
	return true
}
