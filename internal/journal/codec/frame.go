package codec

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

const (
	// FrameBytes is the uncompressed size at which a frame is closed. One change may be larger; it then has its own frame.
	FrameBytes = 1 << 20
	// maxRawBytes bounds the uncompressed size that a frame may claim. An object of the API server is a few MiB at most.
	maxRawBytes = 1 << 30
	// maxScratchBytes is the largest scratch buffer kept for the next frame.
	maxScratchBytes = 2 * FrameBytes
)

// FrameHeader is the uncompressed part of a frame, in front of its changes.
type FrameHeader struct {
	Count  uint64 // changes in it
	Before uint64 // stored bytes of all frames ever written before this one
}

// FrameEncoder encodes changes as stored frames. It reuses its buffers. Not safe for concurrent use.
type FrameEncoder struct {
	zstd      *zstd.Encoder
	meta, raw []byte
	out       []byte
}

// NewFrameEncoder returns an encoder.
func NewFrameEncoder() (*FrameEncoder, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(FrameBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("journal: zstd encoder: %w", err)
	}
	return &FrameEncoder{zstd: enc}, nil
}

// Encode returns the stored form of a frame. The result is valid until the next call.
func (p *FrameEncoder) Encode(h FrameHeader, changes []*event.Change) []byte {
	p.meta = appendMeta(p.meta[:0], changes)
	p.raw = appendRaw(p.raw[:0], p.meta, changes)
	p.out = binary.AppendUvarint(p.out[:0], h.Count)
	p.out = binary.AppendUvarint(p.out, h.Before)
	p.out = p.zstd.EncodeAll(p.raw, p.out)
	out := p.out
	if cap(p.raw) > maxScratchBytes {
		p.raw, p.out = nil, nil
	}
	return out
}

// ReadFrameHeader reads the header of a stored frame and returns the compressed rest.
func ReadFrameHeader(stored []byte) (FrameHeader, []byte, error) {
	count, n := binary.Uvarint(stored)
	if n <= 0 || count == 0 {
		return FrameHeader{}, nil, fmt.Errorf("%w: frame count", form.ErrMalformed)
	}
	before, m := binary.Uvarint(stored[n:])
	if m <= 0 {
		return FrameHeader{}, nil, fmt.Errorf("%w: frame bytes before", form.ErrMalformed)
	}
	return FrameHeader{Count: count, Before: before}, stored[n+m:], nil
}

// FrameDecoder decodes stored frames. Safe for concurrent use.
type FrameDecoder struct {
	zstd *zstd.Decoder

	mu          sync.Mutex
	metaDecoder *zstd.Decoder // a streaming decoder, which decompresses no more than is read
}

// NewFrameDecoder returns a decoder, which the caller closes.
func NewFrameDecoder() (*FrameDecoder, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxRawBytes))
	if err != nil {
		return nil, fmt.Errorf("journal: zstd decoder: %w", err)
	}
	facts, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxRawBytes))
	if err != nil {
		dec.Close()
		return nil, fmt.Errorf("journal: zstd decoder: %w", err)
	}
	return &FrameDecoder{zstd: dec, metaDecoder: facts}, nil
}

// DecodeWithoutBodies decodes the changes of a stored frame without their bodies. It costs a fraction of
// [FrameDecoder.Decode], because the bodies come last and are not decompressed.
func (u *FrameDecoder) DecodeWithoutBodies(stored []byte) ([]event.Change, error) {
	h, packed, err := ReadFrameHeader(stored)
	if err != nil {
		return nil, err
	}
	text, err := u.readMeta(packed)
	if err != nil {
		return nil, fmt.Errorf("%w: metadata: %w", form.ErrMalformed, err)
	}
	return decodeMeta(text, nil, h.Count)
}

func (u *FrameDecoder) readMeta(packed []byte) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.metaDecoder.Reset(bytes.NewReader(packed)); err != nil {
		return "", err
	}
	from := bufio.NewReaderSize(u.metaDecoder, binary.MaxVarintLen64)
	size, err := binary.ReadUvarint(from)
	if err != nil || size > maxRawBytes {
		return "", cmp.Or(err, errors.New("too large"))
	}
	var text strings.Builder
	_, err = io.CopyN(&text, from, int64(size))
	return text.String(), err
}

// Decode decodes a stored frame. The changes share their memory; stored may be reused afterwards.
func (u *FrameDecoder) Decode(stored []byte) ([]event.Change, error) {
	h, packed, err := ReadFrameHeader(stored)
	if err != nil {
		return nil, err
	}
	raw, err := u.zstd.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", form.ErrMalformed, err)
	}
	return decodeRaw(raw, h.Count)
}

// Close releases the decoder, which must not be used after it.
func (u *FrameDecoder) Close() { u.zstd.Close(); u.metaDecoder.Close() }
