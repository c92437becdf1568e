package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// mutation is one change of a value in a valid file. A refused one must be an error in every place that it applies to.
type mutation struct {
	name    string
	refused bool
	apply   func(n *yaml.Node) (applied bool)
}

func setText(tag, text string) func(*yaml.Node) bool {
	return func(n *yaml.Node) bool {
		if n.Kind != yaml.ScalarNode {
			return false
		}
		n.Tag, n.Value, n.Style = tag, text, 0
		if tag == "!!str" {
			n.Style = yaml.DoubleQuotedStyle
		}
		return true
	}
}

func setContent(kind yaml.Kind, tag string) func(*yaml.Node) bool {
	return func(n *yaml.Node) bool {
		if n.Kind == kind {
			return false
		}
		*n = yaml.Node{Kind: kind, Tag: tag}
		return true
	}
}

// mutations change the type, the size and the characters of a value.
var mutations = []mutation{
	{"no value", true, setText("!!null", "null")},
	{"empty", false, setText("!!str", "")},
	{"blanks", false, setText("!!str", "   ")},
	{"a negative number", false, setText("!!int", "-1")},
	{"a negative duration", false, setText("!!str", "-5s")},
	{"a huge number", false, setText("!!int", "9223372036854775807")},
	{"a number beyond 64 bits", true, setText("!!float", "1e400")},
	{"a huge duration", false, setText("!!str", "2562047h")},
	{"a nanosecond", false, setText("!!str", "1ns")},
	{"a huge text", false, setText("!!str", strings.Repeat("x", 100_000))},
	{"a boolean", false, setText("!!bool", "true")},
	{"a list", false, setContent(yaml.SequenceNode, "!!seq")},
	{"a mapping", false, setContent(yaml.MappingNode, "!!map")},
	{"control characters", true, func(n *yaml.Node) bool {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || n.Value == "" {
			return false
		}
		return setText("!!str", n.Value+"\x00\a\n")(n)
	}},
	{"an invisible character", true, func(n *yaml.Node) bool {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || n.Value == "" {
			return false
		}
		return setText("!!str", "\u202e"+n.Value)(n)
	}},
	{"a key twice", true, func(n *yaml.Node) bool {
		if n.Kind != yaml.MappingNode || len(n.Content) < 2 {
			return false
		}
		n.Content = append(n.Content, n.Content[0], n.Content[1])
		return true
	}},
	{"an item twice", false, func(n *yaml.Node) bool {
		if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
			return false
		}
		n.Content = append(n.Content, n.Content[0])
		return true
	}},
}

// mutationStride leaves some 400 of all mutations; it is prime, so that every mutation and every kind of value remains.
const mutationStride = 13

// TestMutatedConfigurationsAreAcceptedOrExplained changes single values of valid files. Whatever is not accepted is an error
// with file, path, and what was found or expected; mutations that can never mean anything are not accepted.
func TestMutatedConfigurationsAreAcceptedOrExplained(t *testing.T) {
	t.Setenv("KUBECONFIG", "none")
	tried, refused := 0, 0
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/earlier/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%d files match %s (%v)", len(files), pattern, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for at := range countNodes(t, content) {
				for i, m := range mutations {
					if (at*len(mutations)+i)%mutationStride != 0 {
						continue
					}
					mutated, path, ok := mutateNode(t, content, at, m)
					if !ok {
						continue
					}
					tried++
					where := fmt.Sprintf("%s: %s is %s", file, path, m.name)
					if isRefused(t, where, mutated) {
						refused++
					} else if m.refused && !mayBeSecret(path) && lastKey(path) != "filter" {
						t.Errorf("%s: accepted", where)
					}
				}
			}
		}
	}
	if tried < 300 || refused < 100 || refused == tried {
		t.Errorf("%d of %d mutations were refused", refused, tried)
	}
	t.Logf("%d of %d mutations were refused", refused, tried)
}

// isRefused loads a mutated file and checks every problem.
func isRefused(t *testing.T, where string, content []byte) bool {
	t.Helper()
	cfg, err := parseConfig("mutated.yaml", content)
	if err == nil {
		if cfg == nil || len(cfg.Resources) == 0 || len(cfg.Sinks) == 0 || cfg.Delivery.Retry.Min <= 0 || cfg.Journal.MaxBytes <= 0 {
			t.Errorf("%s: accepted without a working meaning: %v", where, cfg)
		}
		return false
	}
	var problems *Error
	if !errors.As(err, &problems) || len(problems.Problems) == 0 {
		t.Errorf("%s: an error without problems: %v", where, err)
		return true
	}
	for _, p := range problems.Problems {
		if p.File == "" || p.Line == 0 || p.Path == "" || p.Message == "" || strings.ContainsAny(p.String(), "\n\x00") {
			t.Errorf("%s: %q lacks file, line or path", where, p.String())
		}
	}
	return true
}

// forEachNode calls visit for every value below a document's root, with its path, in the order of the file.
func forEachNode(n *yaml.Node, path string, visit func(n *yaml.Node, path string)) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := joinPath(path, n.Content[i].Value)
			visit(n.Content[i+1], at)
			forEachNode(n.Content[i+1], at, visit)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			visit(item, at)
			forEachNode(item, at, visit)
		}
	}
}

func parseNode(t *testing.T, content []byte) *yaml.Node {
	t.Helper()
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	return document.Content[0]
}

func countNodes(t *testing.T, content []byte) (count int) {
	t.Helper()
	forEachNode(parseNode(t, content), "", func(*yaml.Node, string) { count++ })
	return count
}

// mutateNode applies m to the value with this number.
func mutateNode(t *testing.T, content []byte, number int, m mutation) (mutated []byte, at string, applied bool) {
	t.Helper()
	root := parseNode(t, content)
	var node *yaml.Node
	forEachNode(root, "", func(n *yaml.Node, path string) {
		if number == 0 {
			node, at = n, path
		}
		number--
	})
	if !m.apply(node) {
		return nil, at, false
	}
	mutated, err := yaml.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return mutated, at, true
}
