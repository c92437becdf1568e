package kafka

import (
	"context"
	"sync"
)

// encoders is a fixed set of encoders, one per processor: encoding is pure computation, and each holds a batch's worth
// of memory.
type encoders chan *encoder

func newEncoders(c codec, n int) (encoders, error) {
	es := make(encoders, n)
	for range n {
		e, err := newEncoder(c)
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
