package kafka

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// encoders is a fixed set of encoders, one per processor: encoding is pure computation, and each holds a batch's worth
// of memory.
type encoders chan *record.Encoder

func newEncoders(f format.Format, tombstones bool, c record.Codec, n int) (encoders, error) {
	es := make(encoders, n)
	for range n {
		e, err := record.NewEncoder(f, tombstones, c)
		if err != nil {
			return nil, err
		}
		es <- e
	}
	return es, nil
}

// take waits for a free encoder or the end of ctx.
func (es encoders) take(ctx context.Context) (*record.Encoder, error) {
	select {
	case e := <-es:
		return e, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (es encoders) give(e *record.Encoder) { es <- e }

// buffers recycles the memory of settled batches.
type buffers struct{ pool sync.Pool }

func (p *buffers) take() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

func (p *buffers) give(b []byte) {
	if cap(b) <= 2*record.MaxBatchBytes {
		p.pool.Put(&b)
	}
}

// maxHeld bounds the bytes of unsettled batches that are kept between calls, over all lanes.
const maxHeld = 64 << 20

// byteBudget is a number of bytes to be shared. It is safe for concurrent use.
type byteBudget struct{ left atomic.Int64 }

// take takes n bytes, or none and returns false when fewer are left.
func (q *byteBudget) take(n int) bool {
	if q.left.Add(-int64(n)) >= 0 {
		return true
	}
	q.give(n)
	return false
}

func (q *byteBudget) give(n int) { q.left.Add(int64(n)) }
