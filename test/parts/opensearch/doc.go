// Package opensearch runs a real OpenSearch for tests: one node, without plugins, that listens on the loopback interface. It
// refuses to be root; if the test is root, it runs as a user without rights.
package opensearch
