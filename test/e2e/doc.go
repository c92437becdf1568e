// Package e2e holds the promises of docs/delivery.md as tests: the exporter as a real process between a real Kubernetes
// API server and real Kafka and NATS, with the history of etcd as the truth to compare with.
//
// There are three sets of servers, which start with the first tests that need them. Tests change their servers (they kill
// them, they compact etcd), so each test has a set to itself, and tests run side by side, in any order. A test with subtests
// asks for the set itself, else it runs alone. Each fixture has an exporter, a journal, topics and a stream of its own.
// What a test has created in a cluster is gone after it.
//
//   - internal/oracle reads etcd's history and judges what a bus holds by it.
//   - internal/bus reads a bus from its beginning.
//   - internal/workload writes objects at full speed.
//   - internal/exporter builds and runs the program under test.
//
// KUBECDC_E2E_RACE=1 builds the exporter with the race detector. KUBECDC_E2E_SEED replays the random moments of a run, which
// prints its seed. KUBECDC_E2E_CHANGES=50000 runs at full size what is small in the pipeline, and so do
// KUBECDC_E2E_FAILOVERS=50, KUBECDC_E2E_RATE=2000 (writes a second at most) and, on buses of three servers each,
// KUBECDC_E2E_REPLICAS=3.
package e2e
