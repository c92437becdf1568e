// Package inspect implements the commands beside run: the resources that a configuration selects and the rights it needs
// ([Explain], [RBAC], [AuditPolicy]), the reachability of cluster and sinks ([CheckOnline]), the contents of the journal of
// a stopped exporter ([WriteJournalStat], [DumpChanges], dead letters), and the replicated state ([ShowState]).
//
// Errors carry the exit code of the process, see package exit.
package inspect
