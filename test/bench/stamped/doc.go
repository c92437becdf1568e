// Package stamped makes changes that say when they were written, and tells from a JetStream stream how long each took until
// it was stored there, by the server's clock on the same machine.
package stamped
