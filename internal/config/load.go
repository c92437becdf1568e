package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// hashDigits is the number of hexadecimal digits of a file's hash that are shown.
const hashDigits = 12

// maxFileBytes bounds the size of a configuration file.
const maxFileBytes = 1 << 20

// Load reads and validates the configuration in the file at path. If anything is wrong it returns no configuration and an
// [*Error] with every problem; it returns no other kind of error. Relative paths in the file are relative to the working
// directory. It reads the environment and the files that the configuration names, and creates nothing.
func Load(path string) (*Config, error) { return loadFile(path, validateFiles) }

// LoadWithoutSinkFiles is [Load] for commands that deliver nothing and may run where the credentials of the sinks are not
// available: it skips the checks of files that only sinks read or write.
func LoadWithoutSinkFiles(path string) (*Config, error) { return loadFile(path) }

// ForHistory returns the configuration that writes the history of everything but Events and Leases to a folder, or to a
// bucket (s3://…). It has no file, and the environment overrides its values as those of a file.
func ForHistory(where string) (*Config, error) {
	key, beside := "dir", filepath.Clean(where)
	if strings.HasPrefix(where, "s3:") {
		key, beside = "bucket", "history"
	}
	content := fmt.Sprintf(`resources: [{select: ["*"], exclude: ["events", "events.events.k8s.io", "leases.coordination.k8s.io"]}]
sinks: [{name: history, history: {%s: %q}}]
journal: {dir: %q}
`, key, where, beside+".journal")
	cfg, err := parseConfig("--history", []byte(content), validateFiles)
	if err != nil {
		return nil, err
	}
	cfg.File = ""
	return cfg, nil
}

func loadFile(path string, checks ...func(*reporter, *Config)) (*Config, error) {
	content, err := readLimited(path, maxFileBytes)
	if err != nil {
		return nil, &Error{Problems: []Problem{{File: path, Message: err.Error(), Expected: "a YAML file"}}}
	}
	return parseConfig(path, content, checks...)
}

// parseConfig decodes and validates the content of a file. checks run last, on a configuration without problems.
func parseConfig(file string, content []byte, checks ...func(*reporter, *Config)) (*Config, error) {
	rep := newReporter(file)
	root, problem := parseDocument(content)
	if problem != nil {
		rep.addProblem("", *problem)
		return nil, &Error{Problems: rep.problems}
	}
	cfg := Default()
	d := &decoder{reporter: rep}
	d.decodeValue(root, reflect.ValueOf(&cfg).Elem(), "")
	cfg.secrets, cfg.secretFiles = d.secrets, d.secretFiles
	rep.problems = append(rep.problems, overlayEnvironment(&cfg)...)
	undecoded := slices.Clone(rep.problems)
	validateSections(rep, &cfg)
	more := slices.DeleteFunc(rep.problems[len(undecoded):], func(p Problem) bool { return rep.follows(p, undecoded) })
	rep.problems = slices.Concat(undecoded, more)
	if len(undecoded) == 0 {
		validateRelations(rep, &cfg)
	}
	if len(rep.problems) == 0 {
		warnSuspicious(rep, &cfg)
		for _, check := range checks {
			check(rep, &cfg)
		}
	}
	if len(rep.problems) > 0 {
		return nil, &Error{Problems: sortByLine(rep.problems)}
	}
	sum := sha256.Sum256(content)
	cfg.File, cfg.Hash = file, hex.EncodeToString(sum[:])[:hashDigits]
	cfg.Warnings = sortByLine(rep.warnings)
	return &cfg, nil
}

func locateProblem(file, path string, p Problem) Problem {
	rep := newReporter(file)
	if content, err := readLimited(file, maxFileBytes); err == nil {
		if root, problem := parseDocument(content); problem == nil {
			again := Default()
			(&decoder{reporter: rep}).decodeValue(root, reflect.ValueOf(&again).Elem(), "") // for the lines
		}
	}
	return rep.withLocation(path, p)
}

// parseDocument returns the root of the only YAML document in content, which is a mapping.
func parseDocument(content []byte) (*yaml.Node, *Problem) {
	if problem := encodingProblem(content); problem != nil {
		return nil, problem
	}
	documents := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	switch err := documents.Decode(&first); {
	case errors.Is(err, io.EOF):
		return nil, &Problem{Message: "the file is empty", Expected: "at least resources and sinks"}
	case err != nil:
		return nil, syntaxProblem(content, err)
	}
	root := first.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, &Problem{Line: root.Line, Message: "not a configuration", Found: describeNode(root),
			Expected: "a mapping with resources and sinks"}
	}
	switch err := documents.Decode(&second); {
	case errors.Is(err, io.EOF):
		return root, nil
	case err != nil:
		return nil, syntaxProblem(content, err)
	}
	return nil, &Problem{Line: second.Line, Message: "a second YAML document", Expected: "one document per file"}
}

// yamlLinePattern matches the position at the beginning of the YAML library's errors.
var yamlLinePattern = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxProblem converts an error of the YAML library, with the line that it names. A tab in the indentation is reported
// instead, because the library's messages for it are misleading.
func syntaxProblem(content []byte, err error) *Problem {
	p := &Problem{Message: "not YAML: " + yamlLinePattern.ReplaceAllString(err.Error(), "")}
	if m := yamlLinePattern.FindStringSubmatch(err.Error()); m != nil && m[1] != "" {
		p.Line, _ = strconv.Atoi(m[1]) // digits only
	}
	for i, line := range strings.Split(string(content), "\n") {
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") {
			return &Problem{Line: i + 1, Message: "not YAML: a tab in the indentation", Expected: "spaces"}
		}
	}
	return p
}

// overlayEnvironment overrides the single values of cfg by KUBECDC_… variables. An empty variable counts as not set.
func overlayEnvironment(cfg *Config) (problems []Problem) {
	forEachScalar(reflect.ValueOf(cfg).Elem(), "", func(path string, value reflect.Value) {
		text := os.Getenv(EnvironmentName(path))
		if text == "" {
			return
		}
		parsed := reflect.New(value.Type()).Elem()
		if bad := setScalar(parsed, text, isSize(value.Type(), lastKey(path))); bad != nil {
			problems = append(problems, Problem{File: "environment", Path: path, Found: EnvironmentName(path) + "=" + text,
				Expected: bad.expected, Message: bad.message})
			return
		}
		value.Set(parsed)
	})
	return problems
}

// forEachScalar calls f for every key of v that holds one value. Lists and their contents are skipped.
func forEachScalar(v reflect.Value, path string, f func(path string, value reflect.Value)) {
	fields := fieldsOf(v.Type())
	for _, key := range keysInStructOrder(fields) {
		value := v.FieldByIndex(fields[key].index)
		switch value.Kind() {
		case reflect.Struct:
			forEachScalar(value, joinPath(path, key), f)
		case reflect.Slice, reflect.Pointer, reflect.Map:
		default:
			f(joinPath(path, key), value)
		}
	}
}

// environmentPrefix begins the name of every variable that overrides a key.
const environmentPrefix = "KUBECDC"

// EnvironmentName returns the variable that overrides the key at path, "journal.maxBytes" → "KUBECDC_JOURNAL_MAXBYTES".
// Only single values outside lists have one.
func EnvironmentName(path string) string {
	return environmentPrefix + "_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}
