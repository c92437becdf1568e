package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/internal/exit"
)

const (
	wrongFiles = 400
	goodFiles  = 100
)

// position is the file and line that a message names.
var position = regexp.MustCompile(`(?m)^[^\s:]+\.yaml:[1-9]\d*: `)

// TestWrongFilesAreRefusedAndLeaveNothingBehind runs an exporter with each wrong file that the tests know, and with good
// ones that were made wrong in one spot: it names the place, exits with the code for a bad configuration, and has created
// nothing.
func TestWrongFilesAreRefusedAndLeaveNothingBehind(t *testing.T) {
	dir := corpus(t)
	files, err := filepath.Glob(filepath.Join(dir, "bad", "*.yaml"))
	must(t, err)
	t.Chdir(filepath.Join(dir, "bad"))
	all := bases(t, dir)
	for seed := uint64(0); len(files) < wrongFiles; seed++ {
		if name, text := mutant(rand.New(rand.NewPCG(seed, 11)), all); text != nil {
			file := fmt.Sprintf("mutant-%03d.yaml", seed)
			writeFile(t, file, "# "+name+"\n"+string(text))
			files = append(files, file)
		}
	}
	before := tree(t, dir)
	for _, file := range files {
		file = filepath.Base(file)
		var out, errs bytes.Buffer
		code := executeCommand(t.Context(), []string{"run", "--config", file}, &out, &errs)
		if code != exit.Usage || !position.MatchString(errs.String()) {
			t.Errorf("%s: exit %d and %q, want %d with a file and a line\n%s", file, code, errs.String(), exit.Usage, textOf(t, file))
		}
		for line := range strings.Lines(errs.String()) {
			if len(line) > 1500 {
				t.Errorf("%s: a line of %d bytes", file, len(line))
			}
		}
	}
	if after := tree(t, dir); !slices.Equal(before, after) {
		t.Errorf("files were left behind: %v", slices.DeleteFunc(after, func(f string) bool { return slices.Contains(before, f) }))
	}
}

// TestGoodFilesAreAccepted is the other half: what is right is neither refused nor suspected.
func TestGoodFilesAreAccepted(t *testing.T) {
	dir := corpus(t)
	t.Chdir(filepath.Join(dir, "good"))
	files, err := filepath.Glob("*.yaml")
	must(t, err)
	all := bases(t, dir)
	for seed := uint64(0); len(files) < goodFiles; seed++ {
		file := fmt.Sprintf("variant-%03d.yaml", seed)
		writeFile(t, file, variant(rand.New(rand.NewPCG(seed, 12)), all))
		files = append(files, file)
	}
	for _, file := range files {
		var out, errs bytes.Buffer
		if code := executeCommand(t.Context(), []string{"validate", "--config", file}, &out, &errs); code != exit.OK || errs.Len() > 0 {
			t.Errorf("%s: exit %d and %q\n%s", file, code, errs.String(), textOf(t, file))
		}
	}
}

// corpus is a copy of the files that the tests of internal/config know.
func corpus(t *testing.T) string {
	t.Helper()
	t.Setenv("KUBECONFIG", "none") // not that of the user that runs the test
	t.Setenv("KUBECDC_NATS_URL", "nats://127.0.0.1:4222")
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("../../internal/config/testdata")))
	examples, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("%d examples (%v)", len(examples), err)
	}
	for _, file := range examples {
		writeFile(t, filepath.Join(dir, "good", "example-"+filepath.Base(file)), textOf(t, file))
	}
	return dir
}

// tree lists every file and directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	must(t, err)
	return all
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(text), 0o600))
}

func textOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}

// bases are the good files.
func bases(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "good", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d good files (%v)", len(files), err)
	}
	var all []string
	for _, file := range files {
		all = append(all, textOf(t, file))
	}
	return all
}

// spot is a value in a document, with the key that it has there; "" in a list.
type spot struct {
	parent *yaml.Node
	index  int
	key    string
}

func (p spot) value() *yaml.Node { return p.parent.Content[p.index] }

// spots are all values of a document that hold something.
func spots(n *yaml.Node, key string) []spot {
	var all []spot
	switch n.Kind {
	case yaml.DocumentNode:
		return spots(n.Content[0], "")
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			at := spot{n, i + 1, n.Content[i].Value}
			all = append(append(all, at), spots(n.Content[i+1], at.key)...)
		}
	case yaml.SequenceNode:
		for i := range n.Content {
			all = append(append(all, spot{n, i, key + "[]"}), spots(n.Content[i], key+"[]")...)
		}
	}
	return all
}

func scalar(tag, value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
}

// choices are keys with a fixed set of values.
var choices = []string{"format", "redact", "before", "changed", "sync", "level", "mode", "compression", "mechanism", "capture", "onForbidden",
	"onReplaced", "checkTopics", "storage", "types[]", "classes[]"}

// required are keys that cannot be left out where they stand.
var required = []string{"resources", "sinks", "select", "brokers", "topic", "stream", "subject", "url"}

// mistakes make one value wrong. They report whether they could.
var mistakes = map[string]func(r *rand.Rand, p spot) bool{
	"a misspelt key": func(r *rand.Rand, p spot) bool {
		if p.parent.Kind != yaml.MappingNode {
			return false
		}
		key, at := p.key, r.IntN(len(p.key))
		p.parent.Content[p.index-1].Value = key[:at] + "q" + key[at:]
		return true
	},
	"a key given twice": func(_ *rand.Rand, p spot) bool {
		if p.parent.Kind != yaml.MappingNode {
			return false
		}
		p.parent.Content = append(p.parent.Content, p.parent.Content[p.index-1], p.value())
		return true
	},
	"no value": func(_ *rand.Rand, p spot) bool { return replace(p, scalar("!!null", "null")) },
	"a list in spot of a value": func(_ *rand.Rand, p spot) bool {
		return p.value().Kind != yaml.SequenceNode && replace(p, &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{scalar("!!str", "x")}})
	},
	"a value in spot of a list": func(_ *rand.Rand, p spot) bool {
		return p.value().Kind == yaml.SequenceNode && replace(p, scalar("!!str", "x"))
	},
	"a number in spot of a mapping": func(_ *rand.Rand, p spot) bool {
		return p.value().Kind == yaml.MappingNode && replace(p, scalar("!!int", "1"))
	},
	"an unknown reference": func(_ *rand.Rand, p spot) bool {
		return p.value().Kind == yaml.ScalarNode && replace(p, &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{scalar("!!str", "vault"), scalar("!!str", "x")}})
	},
	"a word in spot of a number": func(_ *rand.Rand, p spot) bool {
		tag := p.value().ShortTag()
		return (tag == "!!int" || tag == "!!float" || tag == "!!bool") && replace(p, scalar("!!str", "several"))
	},
	"a number in spot of a word": func(_ *rand.Rand, p spot) bool {
		v := p.value()
		isQuantity := regexp.MustCompile(`^\d`).MatchString(v.Value)
		return v.Kind == yaml.ScalarNode && v.ShortTag() == "!!str" && !isQuantity && replace(p, scalar("!!int", "17"))
	},
	"a negative number": func(_ *rand.Rand, p spot) bool {
		v := p.value()
		return v.Kind == yaml.ScalarNode && regexp.MustCompile(`^[1-9]\d*[A-Za-z]*$`).MatchString(v.Value) && replace(p, scalar(v.ShortTag(), "-"+v.Value))
	},
	"a value that there is none of": func(_ *rand.Rand, p spot) bool {
		return slices.Contains(choices, p.key) && p.value().Kind == yaml.ScalarNode && replace(p, scalar("!!str", "bogus"))
	},
	"a variable": func(_ *rand.Rand, p spot) bool {
		v := p.value()
		return v.Kind == yaml.ScalarNode && v.ShortTag() == "!!str" && p.key != "filter" && replace(p, scalar("!!str", "${VALUE}"))
	},
	"something required left out": func(_ *rand.Rand, p spot) bool {
		beside := func(key string) bool {
			return slices.ContainsFunc(p.parent.Content, func(n *yaml.Node) bool { return n.Value == key })
		}
		if !slices.Contains(required, p.key) || p.key == "topic" && !beside("brokers") || p.key == "brokers" && beside("topics") ||
			p.key == "subject" && !beside("url") {
			return false // brokers of audit topics are needed where there are topics only, and a subject of signals with a sink
		}
		p.parent.Content = slices.Delete(p.parent.Content, p.index-1, p.index+1)
		return true
	},
	"a kind in spot of a resource": func(_ *rand.Rand, p spot) bool {
		return p.key == "select[]" && replace(p, scalar("!!str", "Pod"))
	},
}

func replace(p spot, n *yaml.Node) bool {
	p.parent.Content[p.index] = n
	return true
}

// torn are mistakes in the text itself.
var torn = map[string]func(r *rand.Rand, text string) string{
	"an open bracket":   func(_ *rand.Rand, text string) string { return text + "\nlog: {level: info\n" },
	"an open quote":     func(_ *rand.Rand, text string) string { return text + "\nlog: {level: \"info}\n" },
	"a tab":             func(_ *rand.Rand, text string) string { return text + "\nlog:\n\tlevel: info\n" },
	"a second document": func(_ *rand.Rand, text string) string { return text + "\n---\n" + text },
	"a byte that is no UTF-8": func(r *rand.Rand, text string) string {
		at := r.IntN(len(text))
		return text[:at] + "\xff" + text[at:]
	},
	"carriage returns": func(_ *rand.Rand, text string) string { return strings.ReplaceAll(text, "\n", "\r") },
}

// mutant is a good file with one mistake, and what that is; nil where the mistake does not fit.
func mutant(r *rand.Rand, all []string) (mistake string, text []byte) {
	base := all[r.IntN(len(all))]
	if names := sortedKeys(torn); r.IntN(10) == 0 {
		name := names[r.IntN(len(names))]
		return name, []byte(torn[name](r, base))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(base), &doc); err != nil {
		panic(err) // a good file
	}
	names := sortedKeys(mistakes)
	name := names[r.IntN(len(names))]
	here := spots(&doc, "")
	if !mistakes[name](r, here[r.IntN(len(here))]) {
		return "", nil
	}
	text, err := yaml.Marshal(&doc)
	if err != nil {
		panic(err)
	}
	return name, text
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// variant is a good file with other values that are as good.
func variant(r *rand.Rand, all []string) string {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(all[r.IntN(len(all))]), &doc); err != nil {
		panic(err)
	}
	root := doc.Content[0]
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	sections := map[string]string{
		"log":      fmt.Sprintf("{level: %s, format: %s}", pick("debug", "info", "warn", "error"), pick("text", "json")),
		"delivery": fmt.Sprintf("{retry: {min: %s, max: %s}, window: %s, drainTimeout: %s}", pick("10ms", "1s"), pick("1s", "5m"), pick("1Mi", "64M", "2097152"), pick("0s", "1m")),
		"journal":  fmt.Sprintf("{dir: %s, maxBytes: %s, keep: %s, sync: %s}", pick("./data", "/var/lib/x", "here"), pick("16Mi", "1T"), pick("0s", "1h"), pick("always", "interval")),
		"admin":    fmt.Sprintf("{listen: %q}", pick("", ":0", "127.0.0.1:8080", "[::1]:80")),
		"cluster":  fmt.Sprintf("{name: %q, onReplaced: %s}", pick("", "prod", "Prod.EU-1", "a b"), pick("fail", "fresh")),
	}
	for _, section := range sortedKeys(sections) { // in an order, so that a seed is always the same file
		if r.IntN(2) == 0 && section != "journal" || slices.ContainsFunc(root.Content, func(n *yaml.Node) bool { return n.Value == section }) {
			continue
		}
		var value yaml.Node
		if err := yaml.Unmarshal([]byte(sections[section]), &value); err != nil {
			panic(err)
		}
		root.Content = append(root.Content, scalar("!!str", section), value.Content[0])
	}
	text, err := yaml.Marshal(&doc)
	if err != nil {
		panic(err)
	}
	return pick("", "# a comment\n", "---\n", "\ufeff") + string(text)
}
