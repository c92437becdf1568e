package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/markdown"
)

// TestEveryLinkLeadsSomewhere follows links to files and to headings; links to the web are not followed.
func TestEveryLinkLeadsSomewhere(t *testing.T) {
	all := pages(t)
	for path, p := range all {
		for _, l := range p.Lines {
			for _, m := range link.FindAllStringSubmatch(l.Prose(), -1) {
				file, anchor, _ := strings.Cut(m[1], "#")
				if strings.Contains(file, "://") || strings.HasPrefix(file, "mailto:") {
					continue
				}
				target := path
				if file != "" {
					target = filepath.Join(filepath.Dir(path), file)
				}
				if _, err := os.Stat(filepath.Join(root, target)); err != nil {
					t.Errorf("%s:%d: %s does not exist", path, l.Number, m[1])
					continue
				}
				if to := all[target]; anchor != "" && to != nil && !to.Anchors[anchor] {
					t.Errorf("%s:%d: %s has no heading %q", path, l.Number, target, anchor)
				}
			}
		}
	}
}

// isInRoom reports whether a page stands beside the code that it is about.
func isInRoom(path string) bool {
	return strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "pkg/")
}

// sourceFile finds the names of Go files in a text.
var sourceFile = regexp.MustCompile(`[\w/]*\b[a-z_]+\.go\b`)

// TestMapsNameFilesThatExist, in their room, in one below or beside it, or by their path: a file that moved takes its place
// in the map along.
func TestMapsNameFilesThatExist(t *testing.T) {
	for path, p := range pages(t) {
		room := filepath.Join(root, filepath.Dir(path))
		if !isInRoom(path) {
			continue
		}
		for _, l := range p.Lines {
			for _, name := range sourceFile.FindAllString(l.Text, -1) {
				exists := func(pattern string) bool {
					found, err := filepath.Glob(pattern)
					return err == nil && len(found) > 0
				}
				if !slices.ContainsFunc([]string{room, filepath.Join(room, "*"), filepath.Dir(room), root}, func(dir string) bool {
					return exists(filepath.Join(dir, name))
				}) {
					t.Errorf("%s:%d: there is no %s", path, l.Number, name)
				}
			}
		}
	}
}

// TestEveryPageIsListed in docs/README.md, or in that of its directory.
func TestEveryPageIsListed(t *testing.T) {
	all := pages(t)
	for path := range all {
		dir, name := filepath.Split(path)
		index := all[dir+"README.md"]
		if !strings.HasPrefix(path, "docs/") || index == nil || name == "README.md" {
			continue
		}
		if !slices.ContainsFunc(index.Lines, func(l markdown.Line) bool { return strings.Contains(l.Text, "]("+name) }) {
			t.Errorf("%s is not listed in %s", path, dir+"README.md")
		}
	}
}

var metric = regexp.MustCompile(`kubecdc_[a-z_]+`)

// TestEveryMetricNamedExists compares with docs/metrics.md, which is made from the metrics. A name that is cut short ends
// with an underscore and stands for all that begin so.
func TestEveryMetricNamedExists(t *testing.T) {
	all := pages(t)
	known := map[string]bool{}
	for _, l := range all["docs/metrics.md"].Lines {
		if name := metric.FindString(l.Text); strings.HasPrefix(l.Text, "| `"+name+"`") {
			known[name] = true
		}
	}
	if len(known) == 0 {
		t.Fatal("docs/metrics.md lists nothing")
	}
	for path, p := range all {
		for _, l := range p.Lines {
			for _, name := range metric.FindAllString(l.Text, -1) {
				if !exists(known, name) {
					t.Errorf("%s:%d: there is no metric %s", path, l.Number, name)
				}
			}
		}
	}
}

func exists(known map[string]bool, name string) bool {
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if whole, ok := strings.CutSuffix(name, part); ok && known[whole] {
			return true
		}
	}
	if strings.HasSuffix(name, "_") {
		for k := range known {
			if strings.HasPrefix(k, name) {
				return true
			}
		}
	}
	return known[name]
}

var alert = regexp.MustCompile(`\bKubecdc[A-Z][A-Za-z]+`)

// TestEveryAlertNamedExists compares with docs/alerts.md, which is made from the alerts.
func TestEveryAlertNamedExists(t *testing.T) {
	all := pages(t)
	for path, p := range all {
		for _, l := range p.Lines {
			for _, name := range alert.FindAllString(l.Text, -1) {
				if !all["docs/alerts.md"].Anchors[strings.ToLower(name)] {
					t.Errorf("%s:%d: there is no alert %s", path, l.Number, name)
				}
			}
		}
	}
}

var (
	fileName = regexp.MustCompile(`\.(go|md|yaml|json)$`)
	section  = regexp.MustCompile("^#+ `(.*)`$")
	row      = regexp.MustCompile("^\\| `([A-Za-z.[\\]]+)` \\|")
	key      = regexp.MustCompile(
		`^(?:cluster|redaction|journal|delivery|audit|admin|log|kafka|nats|webhook)(?:\.[A-Za-z]+)+\b`)
)

// TestEveryKeyNamedExists compares keys that are written with their path, such as journal.maxBytes, with
// docs/configuration.md, which is made from the structs.
func TestEveryKeyNamedExists(t *testing.T) {
	all := pages(t)
	known, at := map[string]bool{}, ""
	for _, l := range all["docs/configuration.md"].Lines {
		if m := section.FindStringSubmatch(l.Text); m != nil {
			at = strings.TrimPrefix(strings.ReplaceAll(m[1], "[]", ""), "sinks.")
		} else if m := row.FindStringSubmatch(l.Text); m != nil {
			known[at+"."+strings.ReplaceAll(m[1], "[]", "")] = true
		}
	}
	if len(known) == 0 {
		t.Fatal("docs/configuration.md lists nothing")
	}
	for path, p := range all {
		for _, l := range p.Lines {
			if l.Block || isInRoom(path) { // names of Go look the same
				continue
			}
			for _, code := range l.Code() {
				if name := key.FindString(code); name != "" && !other(code) && !known[name] {
					t.Errorf("%s:%d: there is no key %s", path, l.Number, name)
				}
			}
		}
	}
}

// other reports whether a text in the form of a key is a file or an API group.
func other(code string) bool {
	return strings.Contains(code, ".k8s.io") || fileName.MatchString(code)
}
