package nats

import "sync"

// waiter waits for the answer to one message. There is one for each lane, since a lane has one message in flight, and
// one more for questions about the stream.
type waiter struct {
	answers chan answer // capacity 1; emptied when a message leaves, filled at most once for it

	mu      sync.Mutex
	attempt uint64 // numbers the messages; an answer to an earlier one is dropped
	subject string // where the message in flight went; "" while there is none
}

// answer is what came back for a message: the server's words, or why none will come.
type answer struct {
	data        []byte
	noResponder bool
	err         error
}

func newWaiter() *waiter { return &waiter{answers: make(chan answer, 1)} }

// begin notes that a message leaves, and returns its number.
func (w *waiter) begin(subject string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.answers: // came after its Publish had given up
	default:
	}
	w.attempt++
	w.subject = subject
	return w.attempt
}

// end notes that nobody waits any more.
func (w *waiter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subject = ""
}

// settle delivers the answer to the message of that number, if it is the one in flight.
func (w *waiter) settle(attempt uint64, a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subject != "" && w.attempt == attempt {
		w.put(a)
	}
}

// fail answers the message in flight, if there is one and it went to subject; "" stands for any.
func (w *waiter) fail(subject string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subject != "" && (subject == "" || subject == w.subject) {
		w.put(answer{err: err})
	}
}

// put delivers the only answer to the message in flight. mu is held.
func (w *waiter) put(a answer) {
	w.subject = ""
	w.answers <- a
}
