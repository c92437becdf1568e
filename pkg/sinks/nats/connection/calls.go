package connection

import (
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// calls are the requests and messages that wait for an answer. The reply subject of each contains its number. They are safe
// for concurrent use.
type calls struct {
	mu     sync.Mutex
	newest uint64
	open   map[uint64]Call
}

// Call is a request, or a series of messages, that waits for answers. Both functions are called with a lock of the link
// held: they must not block, and must not call the link.
type Call struct {
	// SentTo reports whether the call has sent a message to a subject that the server has refused.
	SentTo func(subject string) bool
	// OnAnswer receives every answer until the call ends. reply is the part of the reply subject after the call's number.
	OnAnswer func(reply string, a Answer)
}

// Answer is the server's answer to a message, or the reason why there will be none.
type Answer struct {
	Data         []byte
	Header       nats.Header
	NoResponders bool  // no subscriber or stream takes the subject
	Err          error // why no answer will come; the other fields are zero
}

// addCall registers a call and returns its number. The caller removes it.
func (c *calls) addCall(one Call) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[uint64]Call{}
	}
	c.newest++
	c.open[c.newest] = one
	return c.newest
}

// removeCall removes a call: later answers to it are dropped.
func (c *calls) removeCall(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, number)
}

// deliverAnswer passes an answer to the call with a number, if that still waits.
func (c *calls) deliverAnswer(number uint64, reply string, a Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, waits := c.open[number]; waits {
		one.OnAnswer(reply, a)
	}
}

// failCalls answers with err all calls that have sent to a subject; "" means all calls.
func (c *calls) failCalls(subject string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.open {
		if subject == "" || one.SentTo(subject) {
			one.OnAnswer("", Answer{Err: err})
		}
	}
}

// SubjectIs returns a [Call.SentTo] for a call that sends to one subject.
func SubjectIs(subject string) func(string) bool {
	return func(refused string) bool { return refused == subject }
}

// IsStreamSubject reports whether a subject is not one of JetStream's API. It is the [Call.SentTo] of a call that sends to
// many subjects of a stream.
func IsStreamSubject(refused string) bool { return !strings.HasPrefix(refused, "$JS.API.") }
