// Package codec encodes and decodes what the journal stores, byte by byte: keys, frames of changes, and the other values, as
// internal/journal/FORMAT.md specifies them. It accesses no file.
//
// Each value is described once for both directions, see [form.Coder].
package codec
