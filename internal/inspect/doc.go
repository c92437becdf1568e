// Package inspect answers questions beside a running exporter: what a configuration selects and needs on a cluster
// ([Explain], [RBAC]), and what the journal of a stopped exporter holds ([WriteJournalStat], [DumpChanges], dead letters).
//
// Its errors carry the exit code of the process, see package exit.
package inspect
