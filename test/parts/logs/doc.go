// Package logs keeps a log in memory for tests that read it while it is written.
package logs
