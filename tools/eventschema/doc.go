// Package eventschema describes, member by member, what pkg/format writes: the one truth of which docs/schema (JSON Schema,
// draft 2020-12) and the tables of docs/events.md are generated, and against which tests hold every event.
//
// A published schema allows members and types that it does not know, as docs/events.md asks of consumers. A strict one does
// not: it is for tests, so that nothing is written that is not described.
//
// The package validates nothing itself and knows no validator.
package eventschema

//go:generate go test -run TestPublished . -update
