// Package stdout writes changes as JSON lines, to standard output or to a file: for trying things out, for piping into
// other programs, and for collectors that read files.
//
// There is one lane. A write holds whole lines. To a file it appends, and it acknowledges only after fsync; a line that a
// crash left torn is cut off when the file is opened, which loses nothing because it was never acknowledged. A pipe gives
// no such promise: what it has taken counts as accepted, whether or not its reader lives to use it. When the reader of
// standard output goes away, the process ends by SIGPIPE, as programs in a pipeline do.
//
// The package never rotates, renames or deletes a file, and copes with others who do: when the name is another file's, or
// nobody's, the lines go on in a file of that name; when the file was emptied (copytruncate), at its end. A file that does
// not begin as ours do is refused, and nothing of it is cut. Two processes must not write the same file.
package stdout
