package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// Fetch reads records (version 11: KIP-392).
const Fetch = 1

// NewFetch asks the leader of a partition for records from an offset on: whole batches of about so many bytes, one at least.
func NewFetch(topic string, partition, leaderEpoch int32, from int64, size int32) *RawRequest {
	b := appendInt32(nil, -1)           // no replica asks
	b = appendInt32(b, 0)               // milliseconds to wait for more
	b = appendInt32(b, 1)               // bytes to wait for
	b = append(appendInt32(b, size), 0) // of what is replicated, transactions that are not complete included
	b = appendInt32(b, 0)               // no session
	b = appendInt32(b, -1)
	b = appendInt32(b, 1)
	b = appendString16(b, topic)
	b = appendInt32(b, 1)
	b = appendInt32(b, partition)
	b = appendInt32(b, leaderEpoch)
	b = binary.BigEndian.AppendUint64(b, uint64(from))
	b = binary.BigEndian.AppendUint64(b, 1<<64-1) // -1: only replicas know where their log begins
	b = appendInt32(b, size)
	b = appendInt32(b, 0)     // nothing is forgotten
	b = appendString16(b, "") // no rack
	return &RawRequest{key: Fetch, version: 11, body: b}
}

// Fetched is what a partition holds from the offset that was asked for on.
type Fetched struct {
	End     int64  // of what all in-sync replicas have
	batches []byte // the last one may be cut
}

// ReadFetch reads the answer to NewFetch.
func ReadFetch(r *RawResponse) (f Fetched, err error) {
	r.int32() // throttle time
	code := r.int16()
	r.int32() // session
	for range min(r.list(), len(r.b)) {
		r.str() // topic
		for range min(r.list(), len(r.b)) {
			r.int32() // partition
			if own := r.int16(); own != 0 {
				code = own
			}
			f.End = r.int64()
			r.int64() // end of complete transactions
			r.int64() // beginning of the log
			for range min(r.list(), len(r.b)) {
				r.int64() // an aborted transaction: its producer
				r.int64() // and where it begins
			}
			r.int32() // a replica that may be asked as well
			f.batches = r.Bytes(uint64(max(0, r.int32())))
		}
	}
	if r.Failed {
		return Fetched{}, ErrMalformed
	}
	return f, CodeError(code, "")
}

// Positions in a record batch (kafka.apache.org/documentation/#recordbatch).
const (
	batchLengthAt = 8
	batchHead     = 12 // what the length does not count
	attributesAt  = 21
	lastDeltaAt   = 23
	batchHeader   = 61
)

// Each calls each for the records from an offset on, in order, and returns where the next ones begin. Records that steer
// transactions are left out. Key and headers of a record are valid until each returns. A batch that is left without records,
// as compaction does, is passed.
func (f Fetched) Each(from int64, each func(*protocol.Record) error) (next int64, err error) {
	be := binary.BigEndian
	next = from
	for b := f.batches; len(b) >= batchHeader; {
		size := batchHead + int(be.Uint32(b[batchLengthAt:]))
		if size < batchHeader || size > len(b) {
			break // cut: it comes whole next time
		}
		batch := b[:size]
		b = b[size:]
		if !protocol.Attributes(be.Uint16(batch[attributesAt:])).Control() {
			if err := eachOf(batch, from, each); err != nil {
				return next, err
			}
		}
		next = int64(be.Uint64(batch)) + int64(be.Uint32(batch[lastDeltaAt:])) + 1
	}
	return next, nil
}

// eachOf calls each for the records of one batch.
func eachOf(batch []byte, from int64, each func(*protocol.Record) error) error {
	var set protocol.RecordSet
	length := binary.BigEndian.AppendUint32(nil, uint32(len(batch)))
	if _, err := set.ReadFrom(io.MultiReader(bytes.NewReader(length), bytes.NewReader(batch))); err != nil {
		return fmt.Errorf("a batch that cannot be read: %w", err)
	}
	if set.Records == nil {
		return nil
	}
	for {
		r, err := set.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && r.Offset >= from {
			err = each(r)
		}
		if err != nil {
			return err
		}
	}
}
