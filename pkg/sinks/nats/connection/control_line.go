package connection

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// shortLine is the length up to which a line is accepted by every server that accepts the client's CONNECT.
	shortLine = 256
	// controlLineMemory is how long a length that a server refused is taken to be too long: the limit can be raised.
	controlLineMemory = 10 * time.Minute
)

// controlLines is what is known of the longest line of the protocol that the server accepts, max_control_line. The server
// does not announce it, and closes the connection with all that is in flight at a longer one. The line consists of subject,
// reply subject and sizes. It outlives the links of one owner. It is safe for concurrent use.
type controlLines struct {
	mu      sync.Mutex
	tooLong int       // length that was refused; 0: none
	learned time.Time // when tooLong was refused
}

// sentLines is the longest line that was sent over one link. It is certainly too long when the server has refused any of
// the link: the refused one is not longer. So each refusal blames a line that can never be accepted, and the refused one is
// found at last. Each link has its own, because the library may report a refusal when the next link is in use already.
type sentLines struct {
	known   *controlLines
	longest int // guarded by known.mu
}

// admitMessage returns a [sinks.RejectedError] if the server refuses the line of a message, and records its length else.
func (s *sentLines) admitMessage(m *nats.Msg) error {
	c := s.known
	if len(m.Subject)+len(m.Reply) <= shortLine {
		return nil
	}
	length := controlLineLength(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tooLong > 0 && time.Since(c.learned) > controlLineMemory {
		c.tooLong = 0
	}
	if c.tooLong > 0 && length >= c.tooLong {
		return &sinks.RejectedError{Reason: fmt.Sprintf("a subject of %d bytes and a reply subject of %d are too long for the server's "+
			"max_control_line; it has refused %d bytes, with the sizes", len(m.Subject), len(m.Reply), c.tooLong)}
	}
	s.longest = max(s.longest, length)
	return nil
}

// recordRefusal records that the server has closed the link because of a line.
func (s *sentLines) recordRefusal() {
	c := s.known
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.longest > 0 {
		c.tooLong, c.learned = s.longest, time.Now()
	}
}

// refusedControlLine matches the server's error (nats-server/v2 server/errors.go, ErrMaxControlLine).
var refusedControlLine = regexp.MustCompile(`(?i)maximum control line exceeded`)

// controlLineLength returns the length of the arguments of PUB or HPUB, which the server compares with its limit.
func controlLineLength(m *nats.Msg) int {
	length := len(m.Subject) + len(" ")
	if m.Reply != "" {
		length += len(m.Reply) + len(" ")
	}
	size := len(m.Data)
	if len(m.Header) > 0 {
		header := len("NATS/1.0\r\n\r\n")
		for name, values := range m.Header {
			for _, value := range values {
				header += len(name) + len(": ") + len(value) + len("\r\n")
			}
		}
		length += len(strconv.Itoa(header)) + len(" ")
		size += header
	}
	return length + len(strconv.Itoa(size))
}
