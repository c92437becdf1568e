// Package history is the form of a history: a folder of Parquet files that anything can read, and the manifest that says
// which of them count.
//
//	day=2026-11-28/….parquet         rows, sorted by object; the day is that of the reading, in UTC
//	manifest/0000000000000042.json   a commit; the one with the highest number counts
//
// The file of the next number is a commit, by the writer that creates it first. Files are never changed. Package
// sinks/history writes them.
//
// The files have the rows once, in the order of their sequences: small ones of seconds at the end, then larger ones that
// were merged from these, and large ones at the begin. A large file also has a row of type [Alive] for each object that
// existed where it begins, so that the state at a time takes one large file and what is behind it, and what is older can be
// deleted.
//
// Begin with row.go, manifest.go and snapshot.go.
package history
