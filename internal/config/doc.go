// Package config turns one YAML file into a [Config] that is complete and right, or says everything that is wrong with it.
//
// The file is decoded strictly, straight from its YAML nodes into the Go structs: a key that no struct knows, a key given
// twice, a value of the wrong type or an unresolvable reference is a [Problem] with file, line, YAML path, what was found
// and what was expected. Then come the checks that look across keys. All problems are reported at once ([Error]).
//
// viper lays environment variables (KUBECDC_JOURNAL_DIR for journal.dir) over the sections whose keys are all ours:
// cluster, journal, delivery, admin, log. It lower-cases keys and takes dots for nesting, so lists and anything a user may
// name (resources, sinks) never pass through it.
//
// Wherever a string is expected the file may hold a reference in its place, {env: NAME} or {file: PATH}. What references
// resolve to is never written into a problem.
//
// The package contacts nothing, starts nothing and writes nothing. docs/configuration.md and configs/reference.yaml are
// generated from the structs, their comments and their defaults (go generate ./internal/config).
package config

//go:generate go run ../../tools/configdoc
