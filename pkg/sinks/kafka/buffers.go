package kafka

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/format"
)

// encoders is a fixed set of encoders, one per processor: encoding is pure computation, and each holds a batch's worth
// of memory.
type encoders chan *encoder

func newEncoders(f format.Format, tombstones bool, c codec, n int) (encoders, error) {
	es := make(encoders, n)
	for range n {
		e, err := newEncoder(f, tombstones, c)
		if err != nil {
			return nil, err
		}
		es <- e
	}
	return es, nil
}

// take waits for a free encoder or the end of ctx.
func (es encoders) take(ctx context.Context) (*encoder, error) {
	select {
	case e := <-es:
		return e, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (es encoders) give(e *encoder) { es <- e }

// buffers recycles the memory of settled batches.
type buffers struct{ pool sync.Pool }

func (p *buffers) take() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

func (p *buffers) give(b []byte) {
	if cap(b) <= 2*mostBatchBytes {
		p.pool.Put(&b)
	}
}

// mostHeld bounds the bytes of unsettled batches that are kept between calls, over all lanes.
const mostHeld = 64 << 20

// quota is a number of bytes to be shared. It is safe for concurrent use.
type quota struct{ left atomic.Int64 }

// take takes n bytes, or none and returns false when fewer are left.
func (q *quota) take(n int) bool {
	if q.left.Add(-int64(n)) >= 0 {
		return true
	}
	q.give(n)
	return false
}

func (q *quota) give(n int) { q.left.Add(int64(n)) }
