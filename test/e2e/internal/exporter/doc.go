// Package exporter builds the program under test and runs it as a process of its own, as a user would: a configuration
// file, a signal, an exit code, its log, its HTTP server. It uses nothing of the program's code.
package exporter
