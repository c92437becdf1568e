package pages

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestTheSiteFindsEveryPage builds the pages as a site, and looks each of them up in its search. No link leads nowhere, and
// the marks of blocks, which are for tests, are not in it.
func TestTheSiteFindsEveryPage(t *testing.T) {
	require.Integration(t)
	require.Program(t, "python3", "install Python 3.10 or later")
	root, err := build.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "site")
	command := exec.CommandContext(t.Context(), "make", "--directory", root, "site", "SITE_DIR="+dir)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "search", "search_index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index struct {
		Docs []struct{ Location, Text string }
	}
	if err := json.Unmarshal(content, &index); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, d := range index.Docs {
		page, _, _ := strings.Cut(d.Location, "#")
		found[page] = true
		for _, mark := range []string{"tested by Test", "sh runnable", "not run: needs"} {
			if strings.Contains(d.Text, mark) {
				t.Errorf("%s shows %q", d.Location, mark)
			}
		}
	}
	err = fs.WalkDir(os.DirFS(filepath.Join(root, "docs")), ".", func(path string, _ fs.DirEntry, err error) error {
		if name, isPage := strings.CutSuffix(path, ".md"); isPage {
			if filepath.Base(name) == "README" {
				name = filepath.Join(filepath.Dir(name), "index")
			}
			if !found[name+".html"] {
				t.Errorf("the search does not know docs/%s", path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
