package connection

import (
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// calls are the questions and messages that an answer is awaited for. The reply subject of each holds its number.
type calls struct {
	mu     sync.Mutex
	newest uint64
	open   map[uint64]Call
}

// Call is who awaits an answer. Its functions do not wait, and call nothing of the link.
type Call struct {
	SentTo   func(subject string) bool    // whether it sent to a subject that the user may not publish to
	OnAnswer func(reply string, a Answer) // is told every answer until the call is closed; reply is what follows its number
}

// Answer is what came back for a message: the server's words, or why none will come.
type Answer struct {
	Data         []byte
	Header       nats.Header
	NoResponders bool
	Err          error
}

// addCall takes a call up and returns its number. The caller ends it.
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

// removeCall forgets a call: what comes for it later is dropped.
func (c *calls) removeCall(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, number)
}

// deliverAnswer hands an answer to the call of that number, if it still waits.
func (c *calls) deliverAnswer(number uint64, reply string, a Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, waits := c.open[number]; waits {
		one.OnAnswer(reply, a)
	}
}

// failCalls answers all calls, or with a subject those that sent to it.
func (c *calls) failCalls(subject string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.open {
		if subject == "" || one.SentTo(subject) {
			one.OnAnswer("", Answer{Err: err})
		}
	}
}

// SubjectIs concerns one subject only.
func SubjectIs(subject string) func(string) bool {
	return func(refused string) bool { return refused == subject }
}

// IsStreamSubject concerns everything that is no question to the server.
func IsStreamSubject(refused string) bool { return !strings.HasPrefix(refused, "$JS.API.") }
