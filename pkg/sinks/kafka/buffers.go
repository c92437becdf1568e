package kafka

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// encoderPool is a fixed set of encoders, one per processor: encoding is pure computation, and each holds a batch's worth
// of memory.
type encoderPool chan *record.Encoder

func newEncoderPool(f format.Format, tombstones bool, c record.Codec, n int) (encoderPool, error) {
	es := make(encoderPool, n)
	for range n {
		e, err := record.NewEncoder(f, tombstones, c)
		if err != nil {
			return nil, err
		}
		es <- e
	}
	return es, nil
}

// acquireEncoder waits for a free encoder or the end of ctx.
func (es encoderPool) acquireEncoder(ctx context.Context) (*record.Encoder, error) {
	select {
	case e := <-es:
		return e, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (es encoderPool) releaseEncoder(e *record.Encoder) { es <- e }

// bufferPool recycles the memory of settled batches.
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) getBuffer() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

func (p *bufferPool) putBuffer(b []byte) {
	if cap(b) <= 2*record.MaxBatchBytes {
		p.pool.Put(&b)
	}
}

// maxRetainedBytes bounds the bytes of unsettled batches that are kept between calls, over all lanes.
const maxRetainedBytes = 64 << 20

// byteBudget is a number of bytes to be shared. It is safe for concurrent use.
type byteBudget struct{ remaining atomic.Int64 }

// tryReserve takes n bytes, or none and returns false when fewer are left.
func (q *byteBudget) tryReserve(n int) bool {
	if q.remaining.Add(-int64(n)) >= 0 {
		return true
	}
	q.releaseBytes(n)
	return false
}

func (q *byteBudget) releaseBytes(n int) { q.remaining.Add(int64(n)) }
