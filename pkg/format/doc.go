// Package format encodes changes for consumers. The native form is one JSON object per change, described member by member in
// docs/events.md. A CloudEvent carries the same object as its data, so every [Format] has the same facts: in binary mode
// next to the attributes, in structured mode in one JSON object with them.
//
// Object bodies are copied as the API server sent them, without decoding: numbers, unknown fields and key order are
// preserved.
//
// The package does not depend on the destination. Each sink decides how attributes become headers, with which prefix and
// encoding.
package format

//go:generate go test -run TestEveryFormatIsTheDocumentedForm . -update
