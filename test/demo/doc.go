// Command demo shows the exporter at work, on real parts and without touching anything outside of a temporary directory:
// it starts a Kubernetes API server, a NATS server and bin/exporter with configs/demo.yaml, changes objects, and prints
// every change when it arrives at a NATS subscriber. In the middle it kills the exporter with SIGKILL. In the end it
// compares what the API server has confirmed with what arrived, and exits with code 1 if something is missing.
//
// There are two sides that know nothing of each other. The writing side (cluster.go, load.go) notes each revision that the
// API server confirms; the reading side (subscriber.go) notes each event that NATS delivers. Both note it in one account
// (account.go), which is asked whether they agree. The script (script.go) never sleeps until something is probably there:
// it waits for the account. Its pauses are for readers, and --fast leaves them out.
//
// Whatever the demo starts ends with it, also by Ctrl-C; see stage.go.
package main
