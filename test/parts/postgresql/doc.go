// Package postgresql runs a real PostgreSQL for tests: a process of its own that listens on a Unix socket and nowhere else.
// Its programs come from package build. PostgreSQL refuses to run as root; where the test does, it runs as nobody.
package postgresql
