// Package codec is the stored form of what the journal holds, byte by byte: keys, frames of changes, and the other values,
// as docs/journal-format.md specifies them. It reads and writes no file. What it reads may be broken; it then says
// [ErrMalformed] and neither panics nor asks for much memory.
package codec
