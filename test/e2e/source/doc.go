// Package source tests the promises about reading: edited rules, API servers without WatchList, types that hide, hang and
// go, lists in pages, lost journals, restored histories, bounds. The exporter is a real process with a real API server and
// etcd; it writes to a file, so that no broker is needed and all changes have one order.
//
// One control plane is shared by all tests; those that stop it or compact etcd start their own. Each test has its own
// namespaces, exporter and journal.
//
// KUBECDC_E2E_HISTORIES=60 runs that many histories of edited rules, and KUBECDC_E2E_LISTS=42 interrupts that many first
// lists; KUBECDC_E2E_SEED replays the random choices of a run, which prints its seed. KUBECDC_E2E_MEMORY=1 runs the memory
// tests at full size.
package source
