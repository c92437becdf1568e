package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// schemaFile is where editors find the schema; every example names it in its first line.
const schemaFile = "docs/schema/config.schema.json"

// schemaURL is the address of the schema outside of a copy of the repository.
const schemaURL = "https://raw.githubusercontent.com/kubecdc/kubecdc/main/" + schemaFile

// allowedValues are the values of keys that have a fixed set of them. A test holds them to what is accepted.
var allowedValues = map[string][]string{
	"cluster.onReplaced":      {"fail", "fresh"},
	"resources[].capture":     {"full", "metadata"},
	"resources[].onForbidden": {"degrade", "fail"},
	"resources[].redact":      {"mask", "hmac", "drop", "none"},
	"resources[].hmac.scope":  {"object", "global"},
	"resources[].before":      {"none", "full"},
	"resources[].changed":     {"none", "paths", "values"},
	"sinks[].format":          {"json", "cloudevents", "cloudevents-structured", "debezium", "upsert"},
	"sinks[].schema":          {"", "inline"},
	"sinks[].onOversize":      {"reduce", "deadLetter"},
	"journal.sync":            {"always", "interval"},
	"log.level":               {"debug", "info", "warn", "error"},
	"log.format":              {"text", "json"},
}

// requiredKeys are the keys that a mapping cannot do without.
var requiredKeys = map[string][]string{"": {"resources", "sinks"}, "resources[]": {"select"}, "sinks[]": {"name"}}

// renderSchema writes a JSON Schema of the configuration, for editors. Rules about several keys are left to "exporter
// validate".
func renderSchema(keys []key) []byte {
	whole := mappingSchema("", keys)
	whole["$schema"], whole["$id"], whole["title"] = "https://json-schema.org/draft/2020-12/schema", schemaURL, "Configuration of kubecdc's exporter"
	whole["$defs"] = definitions()
	return marshalSchema(whole)
}

// chartSchemaFile is the schema of the values of the chart, of which "config" is written here.
const chartSchemaFile = "deploy/helm/kubecdc/values.schema.json"

// renderChartSchema writes the schema of the chart with that of the configuration, and what only the chart asks of it: the
// volume and the port of the Pod.
func renderChartSchema(keys []key) []byte {
	text, err := os.ReadFile(filepath.Join(root, chartSchemaFile))
	if err != nil {
		panic(err) // a test runs this
	}
	var whole map[string]any
	if err := json.Unmarshal(text, &whole); err != nil {
		panic(err)
	}
	only := func(key string, schema map[string]any) map[string]any {
		return map[string]any{"required": []string{key}, "properties": map[string]any{key: schema}}
	}
	atLeastOne := map[string]any{"minItems": 1}
	whole["$defs"] = definitions()
	whole["properties"].(map[string]any)["config"] = map[string]any{"allOf": []any{
		mappingSchema("", keys),
		only("journal", only("dir", map[string]any{"const": "/var/lib/kubecdc"})),
		only("admin", only("listen", map[string]any{"pattern": ":8080$", "not": map[string]any{"pattern": `^(127\.|localhost|\[::1\])`}})),
		only("resources", map[string]any{"minItems": 1, "items": only("select", atLeastOne)}), only("sinks", atLeastOne),
	}}
	return marshalSchema(whole)
}

func marshalSchema(whole map[string]any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(whole); err != nil {
		panic(err) // plain maps and strings
	}
	return b.Bytes()
}

// definitions are what the schemas of keys refer to.
func definitions() map[string]any {
	reference := func(key string) map[string]any {
		return map[string]any{
			"type": "object", "properties": map[string]any{key: map[string]any{"type": "string"}}, "required": []string{key}, "additionalProperties": false,
		}
	}
	return map[string]any{
		"reference": map[string]any{
			"description": "A string from the environment or from a file.",
			"oneOf":       []any{reference("env"), reference("file")},
		},
		"duration": map[string]any{"type": []string{"string", "integer"}, "pattern": `^(0|([0-9]*\.?[0-9]+(ns|us|µs|ms|s|m|h))+)$`},
		"size":     map[string]any{"type": []string{"string", "integer"}, "minimum": 0, "pattern": "^[0-9]+([KMGT]i|[kMGT])?$"},
	}
}

// mappingSchema is the schema of a mapping with these keys.
func mappingSchema(path string, keys []key) map[string]any {
	properties := map[string]any{}
	for _, k := range keys {
		properties[k.name] = k.keySchema()
	}
	m := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if required := requiredKeys[path]; required != nil {
		m["required"] = required
	}
	return m
}

// keySchema is that of one key.
func (k key) keySchema() map[string]any {
	var m map[string]any
	switch k.kind {
	case "mapping":
		m = mappingSchema(k.path, k.children)
	case "list":
		m = map[string]any{"type": "array", "items": mappingSchema(k.path, k.children)}
	case "strings":
		m = map[string]any{"type": "array", "items": stringSchema()}
	case "secret":
		m = stringSchema()
	case "string":
		m = stringSchema()
		if values := allowedValues[k.path]; values != nil {
			m = map[string]any{"enum": values}
		}
	case "boolean":
		m = map[string]any{"type": "boolean"}
	case "number":
		m = map[string]any{"type": "number"}
	default: // duration, size
		m = map[string]any{"allOf": []any{map[string]any{"$ref": "#/$defs/" + k.kind}}}
	}
	m["description"] = strings.Join(strings.Fields(k.doc), " ")
	if k.kind != "mapping" && k.kind != "list" && k.kind != "strings" && k.value != "" && k.value != `""` {
		m["default"] = defaultOf(k)
	}
	return m
}

func stringSchema() map[string]any {
	return map[string]any{"anyOf": []any{map[string]any{"type": "string"}, map[string]any{"$ref": "#/$defs/reference"}}}
}

// defaultOf is the default of a key as JSON.
func defaultOf(k key) any {
	switch k.kind {
	case "boolean":
		return k.value == "true"
	case "number", "string":
		var v any
		if err := json.Unmarshal([]byte(k.value), &v); err != nil {
			panic(fmt.Sprintf("the default of %s is %s: %v", k.path, k.value, err))
		}
		return v
	}
	return k.value
}
