// Package source holds the promises about reading: edited rules, API servers without WatchList, types that hide, hang and
// go, lists in pages, lost journals, restored histories, bounds. The exporter is a real process before a real API server and
// etcd; it writes to a file, so that no broker has to run and all changes have one order.
//
// One control plane is shared by all tests; those that stop it or compact etcd start their own. A test has namespaces, an
// exporter and a journal of its own.
//
// KUBECDC_E2E_HISTORIES=60 runs as many histories of edited rules, and KUBECDC_E2E_LISTS=42 interrupts as many first lists;
// KUBECDC_E2E_SEED replays the random ones of a run, which prints its seed. KUBECDC_E2E_MEMORY=1 runs the proofs of memory
// at full size.
package source
