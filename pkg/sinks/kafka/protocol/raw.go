package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// Requests that kafka-go has no types for (kafka.apache.org/protocol). They are asked of the leader of a partition.
const (
	OffsetForLeaderEpoch = 23 // version 3: KIP-320
	DescribeProducers    = 61 // version 0: KIP-664
)

// RawRequest is a request as bytes, behind its header.
type RawRequest struct {
	key      protocol.ApiKey
	version  int16
	flexible bool // has tagged fields (KIP-482), in the header too
	body     []byte
}

// RawResponse is what came back, behind its header.
type RawResponse struct {
	key protocol.ApiKey
	Reader
}

// ApiKey implements [protocol.Message].
func (r *RawRequest) ApiKey() protocol.ApiKey { return r.key }

// ApiKey implements [protocol.Message].
func (r *RawResponse) ApiKey() protocol.ApiKey { return r.key }

// lengthPrefix is the size of the length in front of a request and of an answer.
const lengthPrefix = 4

// maxAnswer bounds an answer to a plain request, in bytes.
const maxAnswer = 64 << 20

// Write writes the request.
func (r *RawRequest) Write(w io.Writer, correlation int32, clientID string) error {
	be := binary.BigEndian
	b := make([]byte, lengthPrefix, 64+len(clientID)+len(r.body))
	b = be.AppendUint16(b, uint16(r.key))
	b = be.AppendUint16(b, uint16(r.version))
	b = be.AppendUint32(b, uint32(correlation))
	b = be.AppendUint16(b, uint16(len(clientID)))
	b = append(b, clientID...)
	if r.flexible {
		b = append(b, 0)
	}
	b = append(b, r.body...)
	be.PutUint32(b, uint32(len(b)-lengthPrefix))
	_, err := w.Write(b)
	return err
}

// Read reads the answer.
func (r *RawRequest) Read(from io.Reader, correlation int32) (protocol.Message, error) {
	var length [lengthPrefix]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > maxAnswer {
		return nil, fmt.Errorf("an answer of %d bytes", size)
	}
	answer := make([]byte, size)
	if _, err := io.ReadFull(from, answer); err != nil {
		return nil, err
	}
	res := &RawResponse{key: r.key, Reader: Reader{b: answer}}
	if got := res.int32(); got != correlation {
		return nil, fmt.Errorf("answer %d to request %d", got, correlation)
	}
	if r.flexible {
		res.tags()
	}
	return res, nil
}

// ErrMalformed says that an answer is not one.
var ErrMalformed = errors.New("the broker's answer is malformed")

// Reader reads numbers and strings from the front of b. After the first failure it only returns zeros.
type Reader struct {
	b      []byte
	Failed bool
}

// NewReader reads b, and keeps it.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Done says whether everything was read, and nothing has failed.
func (r *Reader) Done() bool { return !r.Failed && len(r.b) == 0 }

// Bytes reads n bytes. They are not copied.
func (r *Reader) Bytes(n uint64) []byte {
	if r.Failed || n > uint64(len(r.b)) {
		r.Failed, r.b = true, nil
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

// Uvarint reads a varint without a sign.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.Failed, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *Reader) int16() int16 { return int16(r.number(2)) }
func (r *Reader) int32() int32 { return int32(r.number(4)) }
func (r *Reader) int64() int64 { return int64(r.number(8)) }

func (r *Reader) number(size uint64) (v uint64) {
	for _, b := range r.Bytes(size) {
		v = v<<8 | uint64(b)
	}
	return v
}

// str and list read strings and the lengths of arrays as versions without tagged fields write them, compact ones as the
// others do. A null is "" or 0.
func (r *Reader) str() string        { return string(r.Bytes(uint64(max(0, r.int16())))) }
func (r *Reader) list() int          { return int(max(0, r.int32())) }
func (r *Reader) compactStr() string { return string(r.Bytes(r.compact())) }
func (r *Reader) compactList() int   { return int(min(r.compact(), uint64(len(r.b)))) }

func (r *Reader) compact() uint64 {
	if n := r.Uvarint(); n > 0 {
		return n - 1
	}
	return 0
}

// tags skips tagged fields.
func (r *Reader) tags() {
	for n := r.Uvarint(); n > 0 && !r.Failed; n-- {
		r.Uvarint()
		r.Bytes(r.Uvarint())
	}
}

func appendString16(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendInt32(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }

// NewDescribeProducers asks which producers the leader of a partition knows.
func NewDescribeProducers(topic string, partition int32) *RawRequest {
	b := []byte{2} // one topic: compact lengths are one more
	b = binary.AppendUvarint(b, uint64(len(topic)+1))
	b = append(b, topic...)
	b = append(b, 2) // one partition
	b = appendInt32(b, partition)
	b = append(b, 0, 0) // no tags: of the topic, of the request
	return &RawRequest{key: DescribeProducers, version: 0, flexible: true, body: b}
}

// ProducerAt is what a broker knows about a producer.
type ProducerAt struct {
	Epoch int32
	Last  int32 // sequence number of its newest record; -1 when there is none
}

// ReadProducer finds a producer in the answer to NewDescribeProducers. known is false when the broker has none of that
// ID.
func ReadProducer(r *RawResponse, producer int64) (at ProducerAt, known bool, err error) {
	r.int32() // throttle time
	var code int16
	for range r.compactList() {
		r.compactStr() // topic
		for range r.compactList() {
			r.int32() // partition
			code = r.int16()
			r.compactStr() // message
			for range r.compactList() {
				id, epoch, last := r.int64(), r.int32(), r.int32()
				r.int64() // time of its newest record
				r.int32() // epoch of its transaction coordinator
				r.int64() // where its transaction begins
				r.tags()
				if id == producer {
					at, known = ProducerAt{epoch, last}, true
				}
			}
			r.tags()
		}
		r.tags()
	}
	if r.Failed {
		return ProducerAt{}, false, ErrMalformed
	}
	return at, known, CodeError(code, "")
}

// NewEndOfLog asks the leader in a given epoch for the end of its log, replicated or not.
func NewEndOfLog(topic string, partition, leaderEpoch int32) *RawRequest {
	b := appendInt32(nil, -1) // no replica asks
	b = appendInt32(b, 1)
	b = appendString16(b, topic)
	b = appendInt32(b, 1)
	b = appendInt32(b, partition)
	b = appendInt32(b, leaderEpoch) // as we know it: another one is an error
	b = appendInt32(b, leaderEpoch) // whose end is asked for
	return &RawRequest{key: OffsetForLeaderEpoch, version: 3, body: b}
}

// ReadEndOfLog reads the answer to NewEndOfLog.
func ReadEndOfLog(r *RawResponse) (end int64, err error) {
	r.int32() // throttle time
	var code int16
	for range min(r.list(), len(r.b)) {
		r.str() // topic
		for range min(r.list(), len(r.b)) {
			code = r.int16()
			r.int32() // partition
			r.int32() // leader epoch
			end = r.int64()
		}
	}
	if r.Failed {
		return 0, ErrMalformed
	}
	return end, CodeError(code, "")
}
