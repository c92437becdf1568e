// Package stream asks one JetStream stream: what it is, what it holds, and whose it is. It knows what the server's answers
// and error codes mean, and nothing of changes.
package stream
