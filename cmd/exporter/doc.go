// Command exporter ships every change of the Kubernetes resources a user chooses to Kafka, NATS or a file.
//
// This package holds the flags and texts of the commands, one file each. Their work is in internal/app (run) and
// internal/inspect (everything else).
//
// Exit codes: 0 ok; 1 failed while running; 2 bad configuration or usage, nothing was started; 3 the environment did not
// allow a start (journal directory locked or not writable, admin address in use).
package main
