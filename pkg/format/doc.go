// Package format writes a change in the form consumers read. The native form is one JSON object per change, described
// field by field in docs/events.md. A CloudEvent carries that same object as its data, so that the facts are the same in
// every [Format]: in binary mode beside the attributes, in structured mode inside one JSON object with them.
//
// Object bodies are copied as the API server sent them, never decoded: numbers, unknown fields and key order survive.
//
// The package knows no destination. How attributes become headers, their prefix and their encoding are for each sink.
package format

//go:generate go test -run TestEveryFormatIsTheDocumentedForm|TestTheDocumentationShowsTheSamples . -update
