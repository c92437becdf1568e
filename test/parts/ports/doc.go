// Package ports finds TCP ports on the loopback interface for servers that tests start.
//
// A port that is free now may be taken a moment later, and a server must get the number before it can listen itself; and
// a server that a test has stopped for a while must find its port free when it returns. Hence three rules. A port that
// was given out stays its process's own until that process ends: no other caller of this package gets it. Ports
// come from below the range from which the kernel serves ":0" and outgoing connections: a client must not be handed the
// port of a server that is stopped for a while, and a client that dials such a port must not by chance connect to
// itself. Servers are started through Try, which chooses another port when a stranger was faster.
package ports
