// Command exporter ships every change of the Kubernetes resources a user chooses to Kafka, NATS or a file.
//
// This package is the composition root: it reads the configuration, makes the parts, connects them by plain functions,
// runs them and stops them in one stated order (see exporter.go). There is one file per subcommand.
//
// Exit codes: 0 ok; 1 failed while running; 2 bad configuration or usage, nothing was started; 3 the environment did not
// allow a start (journal directory locked or not writable, admin address in use).
package main
