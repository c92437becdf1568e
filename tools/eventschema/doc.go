// Package eventschema describes the output of pkg/format, member by member. docs/schema (JSON Schema, draft 2020-12) and the
// tables of docs/events-reference.md are generated from it, and tests validate every event against it.
//
// A published schema allows unknown members and types, as docs/events.md requires of consumers. A strict schema rejects
// them; tests use it to ensure that every member is described.
//
// The package validates nothing itself and does not depend on a validator.
package eventschema

//go:generate go test -run TestPublished . -update
