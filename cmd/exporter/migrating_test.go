package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestTheConfigurationsForMigratingAreValid holds docs/migrating.md to the files that it links, and the files to what
// validate says.
func TestTheConfigurationsForMigratingAreValid(t *testing.T) {
	t.Setenv("KUBECONFIG", "none") // not that of the user that runs the test
	page := textOf(t, "../../docs/migrating.md")
	files, err := filepath.Glob("../../configs/migrating/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files (%v)", len(files), err)
	}
	for _, file := range files {
		if code, _, stderr := try(t, "validate", "--config", file); code != 0 || stderr != "" {
			t.Errorf("%s: exit %d: %s", file, code, stderr)
		}
		schema, _, _ := strings.Cut(textOf(t, file), "\n")
		if schema != "# yaml-language-server: $schema=../../docs/schema/config.schema.json" {
			t.Errorf("%s begins with %q", file, schema)
		}
		if link := "(../configs/migrating/" + filepath.Base(file) + ")"; strings.Count(page, link) != 1 {
			t.Errorf("the page does not link %s once", link)
		}
	}
	if n := strings.Count(page, "(../configs/migrating/"); n != len(files) {
		t.Errorf("the page links %d files of %d", n, len(files))
	}
}
