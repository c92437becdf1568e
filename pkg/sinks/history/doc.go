// Package history is the sink that keeps the history of a cluster in a folder of Parquet files, in the form of package
// pkg/history.
//
// There is one lane: the order of rows is that of the journal. A batch becomes a small file, and is acknowledged when that,
// the manifest and their names are synced. What is stored and not known to be settled, after a crash or the
// turn of another writer, is read before the first batch, so that it is not stored again: findSeen. A goroutine merges small
// files to large ones and removes what is too old or too much.
//
// The folder is claimed with the first batch: from then on no older writer commits anything.
package history
