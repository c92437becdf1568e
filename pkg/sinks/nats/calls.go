package nats

import (
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// calls are the questions and messages that an answer is awaited for. The reply subject of each holds its number.
type calls struct {
	mu     sync.Mutex
	newest uint64
	open   map[uint64]call
}

// call is who awaits an answer. Its functions do not wait, and call nothing of calls.
type call struct {
	concerns func(subject string) bool    // whether it sent to a subject that the user may not publish to
	answer   func(reply string, a answer) // is told every answer until the call is closed; reply is what follows its number
}

// answer is what came back for a message: the server's words, or why none will come.
type answer struct {
	data        []byte
	header      nats.Header
	noResponder bool
	err         error
}

// begin takes a call up and returns its number. The caller ends it.
func (c *calls) begin(one call) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[uint64]call{}
	}
	c.newest++
	c.open[c.newest] = one
	return c.newest
}

// end forgets a call: what comes for it later is dropped.
func (c *calls) end(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, number)
}

// settle hands an answer to the call of that number, if it still waits.
func (c *calls) settle(number uint64, reply string, a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, waits := c.open[number]; waits {
		one.answer(reply, a)
	}
}

// fail answers all calls, or with a subject those that sent to it.
func (c *calls) fail(subject string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.open {
		if subject == "" || one.concerns(subject) {
			one.answer("", answer{err: err})
		}
	}
}

// to concerns one subject only.
func to(subject string) func(string) bool {
	return func(refused string) bool { return refused == subject }
}

// toStream concerns everything that is no question to the server.
func toStream(refused string) bool { return !strings.HasPrefix(refused, "$JS.API.") }
