// Package opensearch runs a real OpenSearch for tests: one node, without plugins, that listens on the loopback interface. It
// refuses to be root; where the test is, it runs as nobody.
package opensearch
