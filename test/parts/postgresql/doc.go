// Package postgresql runs a real PostgreSQL for tests: a process of its own that listens on a Unix socket and nowhere else.
// Its programs come from package build. PostgreSQL refuses to run as root; if the test is root, it runs as a user without
// rights.
package postgresql
