package kafka

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// batchEncoder encodes the batches of one lane and adapts their size to what the topic accepts. Not safe for concurrent use.
type batchEncoder struct {
	encoders   encoderPool
	codecs     *compressionChoice
	topic      *topic // that the batches are for
	buffers    *bufferPool
	batchBytes int // the configured size, in bytes of uncompressed records

	targetBytes  int // size of the next batch, in bytes of uncompressed records
	refusedBytes int // a batch of this compressed size was too large for the topic; MaxInt: none was
	maxRecords   int // messages in the next batch at most; MaxInt unless a refused batch is being halved
}

func newBatchEncoder(encoders encoderPool, c *compressionChoice, t *topic, buffers *bufferPool, batchBytes int) batchEncoder {
	return batchEncoder{encoders: encoders, codecs: c, topic: t, buffers: buffers, batchBytes: batchBytes,
		targetBytes: batchBytes, refusedBytes: math.MaxInt, maxRecords: math.MaxInt}
}

// encodeBatch encodes as many messages as one batch may hold. A batch that is known to be too large is halved here without
// asking the broker. A single record is rejected here only if the limit of the topic is known.
func (b *batchEncoder) encodeBatch(ctx context.Context, messages []sinks.Message, at record.ProducerSequence) (*inFlightBatch, error) {
	codec := b.topic.codec.Load()
	e, err := b.encoders.acquireEncoder(ctx, b.codecs.codec(codec), b.topic)
	if err != nil {
		return nil, err
	}
	defer b.encoders.releaseEncoder(e)
	for {
		bytes, count, records, err := e.Encode(b.buffers.getBuffer(), messages, b.targetBytes, b.maxRecords, at)
		if err != nil {
			return nil, err
		}
		f := &inFlightBatch{bytes: bytes, codec: codec, records: records, rawBytes: e.RawBytes(), offsets: make([]uint64, count)}
		limit := b.topic.currentLimit()
		exceeds := f.size() > limit
		if count > 1 && (exceeds || f.size() >= b.refusedBytes) {
			if exceeds {
				b.refusedBytes = min(b.refusedBytes, limit+1)
			}
			b.halveNextBatch(f)
			b.buffers.putBuffer(bytes)
			continue
		}
		if exceeds {
			b.buffers.putBuffer(bytes)
			b.endHalving()
			return nil, b.topic.tooLargeError(f.size(), nil)
		}
		for i := range f.offsets {
			f.offsets[i] = messages[i].Offset
		}
		return f, nil
	}
}

// reencodeBatch restores the bytes of a batch that were not retained: the same messages under the same numbers.
func (b *batchEncoder) reencodeBatch(ctx context.Context, f *inFlightBatch, messages []sinks.Message, at record.ProducerSequence) error {
	codec := b.topic.codec.Load()
	e, err := b.encoders.acquireEncoder(ctx, b.codecs.codec(codec), b.topic)
	if err != nil {
		return err
	}
	defer b.encoders.releaseEncoder(e)
	bytes, _, _, err := e.Encode(nil, messages, math.MaxInt, math.MaxInt, at)
	f.bytes, f.bytesShared, f.codec = bytes, false, codec
	return err
}

// halveNextBatch makes the next batch half of f.
func (b *batchEncoder) halveNextBatch(f *inFlightBatch) { b.maxRecords = len(f.offsets) / 2 }

// endHalving removes the bound that halveNextBatch set.
func (b *batchEncoder) endHalving() { b.maxRecords = math.MaxInt }

// adaptBatchSize chooses the size of the next batch after f was written: below the size that was refused, otherwise as
// configured.
func (b *batchEncoder) adaptBatchSize(f *inFlightBatch) {
	b.endHalving()
	size := f.size()
	if size >= b.refusedBytes { // the limit of the topic was raised
		b.refusedBytes = math.MaxInt
	}
	b.targetBytes = b.batchBytes
	if b.refusedBytes != math.MaxInt {
		// Assume that the next records compress as these did, with an eighth in reserve.
		b.targetBytes = min(b.targetBytes, int(float64(b.refusedBytes)*7/8*float64(f.rawBytes)/float64(size)))
	}
}

// encoderPool holds one encoder per processor: encoding is pure computation, and each encoder holds the memory of a batch.
type encoderPool chan *record.Encoder

func newEncoderPool(f format.Format, tombstones bool, c record.Codec, n int) (encoderPool, error) {
	pool := make(encoderPool, n)
	for range n {
		e, err := record.NewEncoder(f, tombstones, c)
		if err != nil {
			return nil, err
		}
		pool <- e
	}
	return pool, nil
}

// acquireEncoder waits for a free encoder or the end of ctx. The encoder compresses with c, by the schemas of a topic.
func (p encoderPool) acquireEncoder(ctx context.Context, c record.Codec, t *topic) (*record.Encoder, error) {
	select {
	case e := <-p:
		if ids := t.schemas.Load(); ids != nil {
			e.UseSchemas(*ids)
		}
		if err := e.UseCodec(c); err != nil {
			p.releaseEncoder(e)
			return nil, err
		}
		return e, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p encoderPool) releaseEncoder(e *record.Encoder) { p <- e }

// bufferPool recycles the memory of settled batches. It is safe for concurrent use.
type bufferPool struct{ pool sync.Pool }

// getBuffer returns an empty buffer; it may be nil.
func (p *bufferPool) getBuffer() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

// putBuffer takes a buffer back, unless one unusually large record made it grow.
func (p *bufferPool) putBuffer(b []byte) {
	if cap(b) <= 2*record.MaxBatchBytes {
		p.pool.Put(&b)
	}
}

// maxRetainedBytes bounds the bytes of unsettled batches that all lanes together retain between calls. // I6
const maxRetainedBytes = 64 << 20

// byteBudget is a number of bytes that lanes reserve and release. It is safe for concurrent use.
type byteBudget struct{ remaining atomic.Int64 }

// tryReserve reserves n bytes and returns true, or reserves nothing when fewer remain.
func (q *byteBudget) tryReserve(n int) bool {
	if q.remaining.Add(-int64(n)) >= 0 {
		return true
	}
	q.releaseBytes(n)
	return false
}

func (q *byteBudget) releaseBytes(n int) { q.remaining.Add(int64(n)) }

// timestampCondition is raised while brokers reject timestamps because their clock differs too much from ours
// (message.timestamp.before.max.ms, message.timestamp.after.max.ms). It is safe for concurrent use.
type timestampCondition struct {
	condition *condition.Condition
	last      atomic.Int64 // when a timestamp was rejected last, Unix nanoseconds
}

// recordRefusal records that a broker has rejected the present time as a timestamp.
func (c *timestampCondition) recordRefusal(topic string, err error) {
	c.last.Store(time.Now().UnixNano())
	c.condition.Update(condition.Problem{Code: condition.SinkClockRefused, Cause: "a broker rejects the current time as a timestamp"},
		"topic", topic, "error", err)
}

// status returns whether brokers reject timestamps: each lane has tried one again since the last refusal.
func (c *timestampCondition) status() condition.Status {
	c.condition.UpdateIf(func(condition.Status) bool { return time.Since(time.Unix(0, c.last.Load())) >= 2*timestampPause }, condition.Problem{})
	return c.condition.Status()
}

// partitionForKey returns the partition of a key as the Java client's default partitioner does
// (org.apache.kafka.common.utils.Utils.murmur2, toPositive), so that stream processors that join on the key find the
// partitions they expect.
func partitionForKey(key []byte, partitions int) int32 {
	return int32(int(murmur2(key)&0x7fffffff) % partitions)
}

// murmur2 is the 32-bit MurmurHash2 with the seed of Kafka's Java client.
func murmur2(data []byte) uint32 {
	const (
		seed uint32 = 0x9747b28c
		m    uint32 = 0x5bd1e995
		r           = 24
	)
	h := seed ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data) * m
		k ^= k >> r
		h = h*m ^ k*m
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(data[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
