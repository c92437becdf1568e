// Package stdout writes changes as JSON lines, to standard output or to a file: for trying things out, for pipes into other
// programs, and for collectors that read files.
//
// There is one lane. A write holds complete lines. To a file the sink appends, and it acknowledges only after fsync; a line
// that a crash left torn is truncated when the file is opened, which loses nothing because it was never acknowledged. A pipe
// gives no such promise: what was written to it counts as accepted, even if its reader never uses it. When the reader of
// standard output closes it, the process ends by SIGPIPE, as is usual for programs in a pipeline.
//
// The package never rotates, renames or deletes a file, and works with programs that do: if the path leads to another file
// or to none, lines continue in a file of that path; if the file was truncated (copytruncate), at its end. A file that does
// not begin as the exporter's files do is rejected and not modified. Two processes must not write the same file.
package stdout
