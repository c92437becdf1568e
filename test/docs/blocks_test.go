package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a block of code on a page.
type block struct {
	place    string // PAGE:LINE
	language string
	mark     string
	lines    []string
}

var (
	runnable = regexp.MustCompile(`^runnable( background| stops .+)?$`)
	tested   = regexp.MustCompile(`^tested by (Test\w+)$`)
	notRun   = regexp.MustCompile(`^not run: \S+( \S+)+$`)
	quoted   = regexp.MustCompile(`^from (\S+)$`)
)

// TestEveryBlockIsTestedOrNamesWhyNot. What begins a block of code is its language, and how it is tested:
//
//	sh runnable …           test/pages runs it, see there
//	LANGUAGE tested by TEST a test with this name runs or loads it in a way of its own
//	LANGUAGE from FILE      each of its lines is in that file, which is compiled
//	LANGUAGE not run: WHY
//	LANGUAGE output         shows what a program prints; so does a block without a language
//	yaml                    cmd/exporter loads it as a configuration, or as a part of one
func TestEveryBlockIsTestedOrNamesWhyNot(t *testing.T) {
	tests := testNames(t)

	for path := range pages(t) {
		for _, b := range blocksOf(t, path) {
			switch m := tested.FindStringSubmatch(b.mark); {
			case b.language == "" && b.mark == "":
			case b.language == "yaml" && b.mark == "":
			case b.language != "" && (b.mark == "output" || notRun.MatchString(b.mark)):
			case b.language == "sh" && runnable.MatchString(b.mark):
				if !strings.Contains(textOf(t, "test/pages"), `"`+path+`"`) {
					t.Errorf("%s: no test in test/pages follows %s", b.place, path)
				}
			case m != nil:
				if !tests[m[1]] {
					t.Errorf("%s: there is no test %s", b.place, m[1])
				}
			case quoted.MatchString(b.mark):
				checkQuote(t, b, quoted.FindStringSubmatch(b.mark)[1])
			default:
				t.Errorf("%s: how is this block tested? It begins with %q", b.place, strings.TrimSpace(b.language+" "+b.mark))
			}
		}
	}
}

// TestABlockWithoutAMarkIsFound: the reader of blocks sees those in lists too, and each of the wrong marks is refused.
func TestABlockWithoutAMarkIsFound(t *testing.T) {
	found := parseBlocks("page", "a\n```sh\nls\n```\n- b\n\n  ```yaml not run: no reason\n  a: b\n  ```\n")
	if len(found) != 2 || found[0].mark != "" || found[1].mark != "not run: no reason" || found[1].place != "page:7" || len(found[1].lines) != 1 {
		t.Errorf("%+v", found)
	}
	for _, wrong := range []string{"", "runnable in the background", "tested by hand", "not run:", "not run: lazy", "from", "tested"} {
		if runnable.MatchString(wrong) || tested.MatchString(wrong) || notRun.MatchString(wrong) || quoted.MatchString(wrong) {
			t.Errorf("%q is taken for a mark", wrong)
		}
	}
}

// blocksOf reads the blocks of a page.
func blocksOf(t *testing.T, path string) []block {
	t.Helper()
	return parseBlocks(path, textOf(t, path))
}

func parseBlocks(path, content string) (all []block) {
	open := false
	number := 0
	for line := range strings.Lines(content) {
		number++
		info, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && !open:
			language, mark, _ := strings.Cut(info, " ")
			all = append(all, block{place: fmt.Sprintf("%s:%d", path, number), language: language, mark: mark})
			open = true
		case fence:
			open = false
		case open:
			last := &all[len(all)-1]
			last.lines = append(last.lines, strings.TrimSpace(line))
		}
	}
	return all
}

// checkQuote looks for each line of a block in the file that it names.
func checkQuote(t *testing.T, b block, file string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(textOf(t, file)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	for _, line := range b.lines {
		if !slices.Contains(lines, line) {
			t.Errorf("%s: %s has no line %q", b.place, file, line)
		}
	}
}

// textOf returns the text of a file, or of all Go files in a directory.
func textOf(t *testing.T, path string) string {
	t.Helper()
	files := []string{filepath.Join(root, path)}
	if filepath.Ext(path) == "" {
		var err error
		if files, err = filepath.Glob(filepath.Join(root, path, "*.go")); err != nil {
			t.Fatal(err)
		}
	}
	var all strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
	}
	return all.String()
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// testNames are the tests of all modules.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && (path == ".cache" || path == ".git") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range testFunction.FindAllStringSubmatch(textOf(t, path), -1) {
				names[m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
