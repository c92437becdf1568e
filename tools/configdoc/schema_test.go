package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/internal/config"
)

func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, schemaFile))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(schemaURL, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(schemaURL)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validateYAML holds a text in YAML to the schema.
func validateYAML(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// TestSchemaAcceptsGoodFiles holds it to the examples, which name it in their first line, and to the good files of the
// tests.
func TestSchemaAcceptsGoodFiles(t *testing.T) {
	s := compiledSchema(t)
	examples, err := filepath.Glob(filepath.Join(top, "configs", "*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatal(examples, err)
	}
	good, err := filepath.Glob("../../internal/config/testdata/good/*.yaml")
	if err != nil || len(good) == 0 {
		t.Fatal(good, err)
	}
	migrating, err := filepath.Glob(filepath.Join(top, "configs", "migrating", "*.yaml"))
	if err != nil || len(migrating) == 0 {
		t.Fatal(migrating, err)
	}
	for i, file := range slices.Concat(examples, good, migrating) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := validateYAML(t, s, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if line := "# yaml-language-server: $schema=../" + schemaFile + "\n"; i < len(examples) && !strings.HasPrefix(string(text), line) {
			t.Errorf("%s does not begin with %q", file, line)
		}
	}
}

const least = "resources: [{select: [pods]}]\nsinks: [{name: out, stdout: {}}]\n"

// TestSchemaRejectsMistakes: what an editor should underline.
func TestSchemaRejectsMistakes(t *testing.T) {
	s := compiledSchema(t)
	if err := validateYAML(t, s, []byte(least)); err != nil {
		t.Fatal(err)
	}
	for _, slip := range []string{
		"sinkss: []", "journal: {maxbytes: 1}", "journal: {maxBytes: much}", "journal: {keep: 5 minutes}", "delivery: {window: fast}",
		"log: {level: loud}", "admin: localhost", "cluster: {name: {vault: x}}", "routes: {}",
	} {
		if validateYAML(t, s, []byte(least+slip+"\n")) == nil {
			t.Errorf("%s is accepted", slip)
		}
	}
	for _, text := range []string{"sinks: [{name: out, stdout: {}}]", "resources: [{}]\nsinks: []", "resources: [{select: pods}]\nsinks: []"} {
		if validateYAML(t, s, []byte(text)) == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

// TestSchemaListsAllowedValues gives a configuration each value that the schema names, and one that it does not: the
// message for an invalid value lists the valid ones.
func TestSchemaListsAllowedValues(t *testing.T) {
	for path, values := range allowedValues {
		for _, value := range append([]string{"bogus"}, values...) {
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(configWithValue(t, path, value)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := config.LoadWithoutSinkFiles(file)
			last := path[strings.LastIndexByte(path, '.')+1:]
			refused := err != nil && strings.Contains(err.Error(), last+":") && !strings.Contains(err.Error(), "needs") && !strings.Contains(err.Error(), "without")
			if value == "bogus" && !refused {
				t.Errorf("%s: bogus is not refused: %v", path, err)
			}
			if value != "bogus" && err != nil && strings.Contains(err.Error(), fmt.Sprintf("found %q", value)) {
				t.Errorf("%s: %s is refused: %v", path, value, err)
			}
		}
	}
}

// configWithValue is a configuration with a value at a path.
func configWithValue(t *testing.T, path, value string) string {
	t.Helper()
	rule, sink, rest := "{select: [secrets]", "{name: bus, nats: {url: 'nats://h:1', stream: S, subject: 'k.{name}'}", "redaction: {key: 0123456789abcdef}\n"
	switch section, key, _ := strings.Cut(path, "."); {
	case section == "resources[]" && key == "hmac.scope":
		rule += fmt.Sprintf(", redact: hmac, hmac: {scope: %s}", value)
	case section == "resources[]":
		rule += fmt.Sprintf(", %s: %s", key, value)
	case section == "sinks[]":
		sink += fmt.Sprintf(", %s: %s", key, value)
	default:
		rest += fmt.Sprintf("%s: {%s: %s}\n", section, key, value)
	}
	return "resources: [" + rule + "}]\nsinks: [" + sink + "}]\n" + rest
}
