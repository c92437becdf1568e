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

// otherValues take the place of a value. One that can never mean anything is refused wherever it stands.
var otherValues = []struct {
	name    string
	refused bool
	node    yaml.Node
}{
	{"no value", true, scalarNode("!!null", "null")},
	{"empty", false, scalarNode("!!str", "")},
	{"blanks", false, scalarNode("!!str", "   ")},
	{"a negative number", false, scalarNode("!!int", "-1")},
	{"a negative duration", false, scalarNode("!!str", "-5s")},
	{"a huge number", false, scalarNode("!!int", "9223372036854775807")},
	{"a number beyond 64 bits", true, scalarNode("!!float", "1e400")},
	{"a huge duration", false, scalarNode("!!str", "2562047h")},
	{"a nanosecond", false, scalarNode("!!str", "1ns")},
	{"a huge text", false, scalarNode("!!str", strings.Repeat("x", 100_000))},
	{"a boolean", false, scalarNode("!!bool", "true")},
	{"control characters", true, scalarNode("!!str", "x\x00\a\n")},
	{"an invisible character", true, scalarNode("!!str", "\u202ex")},
	{"a list", false, yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}},
	{"a mapping", false, yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}},
}

func scalarNode(tag, text string) yaml.Node {
	n := yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text}
	if tag == "!!str" {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// valueStride leaves some 400 of all combinations; it is prime, so that every value and every place remains.
const valueStride = 13

// TestAnyValueIsAcceptedOrExplained puts other values in the place of single values of valid files. Whatever is not accepted
// is an error with file, line and path; values that can never mean anything are not accepted.
func TestAnyValueIsAcceptedOrExplained(t *testing.T) {
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
			var document yaml.Node
			if err := yaml.Unmarshal(content, &document); err != nil {
				t.Fatal(err)
			}
			forEachNode(document.Content[0], "", func(n *yaml.Node, path string) {
				for _, other := range otherValues {
					if tried++; tried%valueStride != 0 || other.node.Kind == n.Kind && n.Kind != yaml.ScalarNode ||
						other.refused && n.Kind != yaml.ScalarNode {
						continue
					}
					was := *n
					*n = other.node
					mutated, err := yaml.Marshal(&document)
					if *n = was; err != nil {
						t.Fatal(err)
					}
					where := fmt.Sprintf("%s: %s is %s", file, path, other.name)
					if isRefused(t, where, mutated) {
						refused++
					} else if other.refused && !mayBeSecret(strings.TrimSuffix(path, ".file")) && lastKey(path) != "filter" {
						t.Errorf("%s: accepted", where)
					}
				}
			})
		}
	}
	if tried /= valueStride; tried < 300 || refused < 100 || refused == tried {
		t.Errorf("%d of %d values were refused", refused, tried)
	}
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
