// Package wire is a network between two programs that delays what passes.
package wire

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Wire is a network with a delay: what comes in goes out unchanged, so much later. It has no limit of bandwidth.
type Wire struct {
	listener net.Listener
	delay    atomic.Int64 // nanoseconds
	carried  atomic.Int64

	mu     sync.Mutex
	closed bool
	ends   []net.Conn
}

// New makes a wire that delays each direction. No client is served before [Wire.Serve].
func New(delay time.Duration) (*Wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w := &Wire{listener: l}
	w.Delay(delay)
	return w, err
}

// Delay sets the delay of each direction for what comes from now on. It may be called at any time.
func (w *Wire) Delay(d time.Duration) { w.delay.Store(int64(d)) }

// Carried is how many bytes have come in so far, from both sides.
func (w *Wire) Carried() int64 { return w.carried.Load() }

// Address is where to connect to, host:port.
func (w *Wire) Address() string { return w.listener.Addr().String() }

// Serve connects every client with target until Close, and returns when all are gone.
func (w *Wire) Serve(target string) error {
	var ways sync.WaitGroup
	defer ways.Wait()
	for {
		near, err := w.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		far, err := net.Dial("tcp", target)
		if err != nil { // target is away, for now
			_ = near.Close()
			continue
		}
		w.attach(near, far)
		ways.Go(func() { w.carry(near, far) })
		ways.Go(func() { w.carry(far, near) })
	}
}

// attach has Close close the ends, or closes them when the wire is cut already.
func (w *Wire) attach(ends ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, ends...)
	if w.closed {
		w.cut()
	}
}

// Close cuts the wire.
func (w *Wire) Close() {
	_ = w.listener.Close() // no more clients
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.cut()
}

// cut closes all ends. The caller holds mu.
func (w *Wire) cut() {
	for _, end := range w.ends {
		_ = end.Close() // it may be closed already
	}
}

// parcel is what was read at once, and when it is due.
type parcel struct {
	data []byte
	due  time.Time
}

// carry takes bytes from one end to the other, and closes both when either does.
func (w *Wire) carry(from, to net.Conn) {
	parcels := make(chan parcel, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range parcels {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close() // ends the reader
			}
		}
		_ = to.Close() // the other side has ended
	})
	for {
		data := make([]byte, 64<<10)
		n, err := from.Read(data)
		if n > 0 {
			w.carried.Add(int64(n))
			parcels <- parcel{data[:n], time.Now().Add(time.Duration(w.delay.Load()))}
		}
		if err != nil {
			break
		}
	}
	close(parcels)
	writer.Wait()
}
