// Package format writes a change in the form consumers read. The native form is one JSON object per change, described
// field by field in docs/events.md.
//
// Object bodies are copied as the API server sent them, never decoded: numbers, unknown fields and key order survive.
package format
