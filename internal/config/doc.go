// Package config turns one YAML file into a validated [Config], or reports every problem in it.
//
// Load runs in three steps:
//
//   - decode: the YAML nodes are decoded strictly into the Go structs ([Config] and the config types of the sinks). An
//     unknown key, a duplicate key, a value of the wrong type or an unresolvable reference is a [Problem] with file, line,
//     YAML path, the value found and the value expected.
//   - overlay: environment variables (KUBECDC_JOURNAL_DIR for journal.dir) override single values outside lists.
//   - validate: each section of the file has a function that checks it, in the file named after the section. The checks
//     add to a shared reporter; a check never stops another one.
//
// All problems are reported at once ([Error]). Settings that are valid but probably mistakes become warnings.
//
// A string in the file may be replaced by a reference, {env: NAME} or {file: PATH}. Resolved values never appear in a
// problem.
//
// The package opens no connection, starts nothing and writes nothing. docs/configuration.md, configs/reference.yaml and the
// JSON Schema are generated from the structs, their comments and their defaults (go generate ./internal/config).
package config

//go:generate go run ../../tools/configdoc
