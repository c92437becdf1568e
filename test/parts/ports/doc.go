// Package ports finds TCP ports on the loopback interface for servers that tests start.
//
// A port that is free now may be taken a moment later, and a server must get the number before it can listen itself.
// Hence two rules. Ports come from below the range from which the kernel serves ":0" and outgoing connections: a
// client must not be handed the port of a server that a test has stopped for a while (the server could not return),
// and a client that dials such a port must not by chance connect to itself. And who starts a server does so through
// Try, which chooses anew when another process was faster.
package ports
