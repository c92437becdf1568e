// Package loki runs a real Loki for tests: all of it in one process, which keeps its data in a directory and listens on the
// loopback interface. Its limits are Loki's defaults.
package loki
