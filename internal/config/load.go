package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// hashDigits is how much of the hash of a file is shown.
const hashDigits = 12

// maxFileBytes bounds what is read as a configuration, in bytes.
const maxFileBytes = 1 << 20

// Load reads, completes and checks the configuration in the file at path. When anything is wrong it returns no
// configuration and an [*Error] with all of it; it returns no other kind of error. Relative paths in the file are relative
// to the working directory. It reads the environment and the files that the configuration names, and creates nothing.
func Load(path string) (*Config, error) { return loadFile(path, (*decoder).validateFiles) }

// LoadWithoutSinkFiles is [Load] for commands that deliver nothing, which may run where the credentials of the sinks are not: it does not
// look at the files that only sinks read and write.
func LoadWithoutSinkFiles(path string) (*Config, error) { return loadFile(path) }

func loadFile(path string, checks ...func(*decoder, *Config)) (*Config, error) {
	content, err := readLimited(path, maxFileBytes)
	if err != nil {
		return nil, &Error{Problems: []Problem{{File: path, Message: err.Error(), Expected: "a YAML file"}}}
	}
	return parseConfig(path, content, checks...)
}

// parseConfig is loadFile of a file that was read.
func parseConfig(file string, content []byte, checks ...func(*decoder, *Config)) (*Config, error) {
	d := &decoder{file: file, lines: map[string]int{}}
	if problem := encodingProblem(content); problem != nil {
		d.addProblem("", *problem)
		return nil, &Error{Problems: d.problems}
	}
	cfg := Default()
	root, problem := parseDocument(content)
	if problem != nil {
		d.addProblem("", *problem)
		return nil, &Error{Problems: d.problems}
	}
	d.decodeValue(root, reflect.ValueOf(&cfg).Elem(), "")
	d.problems = append(d.problems, overlayEnvironment(&cfg)...)
	if len(d.problems) == 0 { // a value that could not be read would only raise false alarms
		d.validateAll(&cfg)
	}
	if len(d.problems) == 0 {
		d.warnSuspicious(&cfg)
		for _, check := range checks {
			check(d, &cfg)
		}
	}
	if len(d.problems) > 0 {
		return nil, &Error{Problems: sortByLine(d.problems)}
	}
	sum := sha256.Sum256(content)
	cfg.File, cfg.Hash = file, hex.EncodeToString(sum[:])[:hashDigits]
	cfg.Warnings, cfg.secrets = sortByLine(d.warnings), d.secrets
	return &cfg, nil
}

// parseDocument returns the root of the one YAML document in content.
func parseDocument(content []byte) (*yaml.Node, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var doc, more yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, &Problem{Message: "the file is empty", Expected: "at least resources and sinks"}
	case err != nil:
		return nil, syntaxProblem(content, err)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, &Problem{Line: root.Line, Message: "not a configuration", Found: describeNode(root), Expected: "a mapping with resources and sinks"}
	}
	switch err := decoder.Decode(&more); {
	case errors.Is(err, io.EOF):
		return root, nil
	case err != nil:
		return nil, syntaxProblem(content, err)
	}
	return nil, &Problem{Line: more.Line, Message: "a second YAML document", Expected: "one document a file"}
}

var yamlLinePattern = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxProblem turns an error of the YAML library into a problem, with the line it names.
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

// environmentPrefix begins the name of every variable that overrides a key.
const environmentPrefix = "KUBECDC"

// EnvironmentName returns the variable that overrides the key at path, "journal.maxBytes" → "KUBECDC_JOURNAL_MAXBYTES".
// Only single values outside resources and sinks have one.
func EnvironmentName(path string) string {
	return environmentPrefix + "_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}
