// Package stamped makes changes that carry the time of their writing, and measures from a JetStream stream how long each
// took until it was stored there, by the server's clock on the same machine.
package stamped
