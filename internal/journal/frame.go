package journal

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	frameFormat = 1

	// frameBytes is the uncompressed size at which a frame is closed. One change may be larger; it then has its own frame.
	frameBytes = 1 << 20
	// maxRawBytes bounds what a frame may claim to unpack to. An object of the API server is a few MiB at most.
	maxRawBytes = 1 << 30
	// keepScratch is the largest scratch buffer kept for the next frame.
	keepScratch = 2 * frameBytes
)

// frameHeader is what a frame says about itself before its compressed changes.
type frameHeader struct {
	count  uint64 // changes in it
	before uint64 // stored bytes of all frames ever written before this one
}

// packer turns changes into stored frames. It is used by the committer only, and reuses its buffers.
type packer struct {
	zstd      *zstd.Encoder
	meta, raw []byte
	out       []byte
}

func newPacker() (*packer, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(frameBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("journal: zstd encoder: %w", err)
	}
	return &packer{zstd: enc}, nil
}

// frame returns the stored form of a frame. The result is valid until the next call.
func (p *packer) frame(h frameHeader, changes []*event.Change) []byte {
	p.meta = p.meta[:0]
	for _, c := range changes {
		p.meta = appendMeta(p.meta, c)
	}
	p.raw = appendRaw(p.raw[:0], p.meta, changes)
	p.out = append(p.out[:0], frameFormat)
	p.out = binary.AppendUvarint(p.out, h.count)
	p.out = binary.AppendUvarint(p.out, h.before)
	p.out = p.zstd.EncodeAll(p.raw, p.out)
	out := p.out
	if cap(p.raw) > keepScratch {
		p.raw, p.out = nil, nil
	}
	return out
}

// readFrameHeader reads the header of a stored frame and returns the compressed rest.
func readFrameHeader(stored []byte) (frameHeader, []byte, error) {
	if len(stored) == 0 || stored[0] != frameFormat {
		return frameHeader{}, nil, fmt.Errorf("%w: frame format", errMalformed)
	}
	rest := stored[1:]
	count, n := binary.Uvarint(rest)
	if n <= 0 || count == 0 {
		return frameHeader{}, nil, fmt.Errorf("%w: frame count", errMalformed)
	}
	before, m := binary.Uvarint(rest[n:])
	if m <= 0 {
		return frameHeader{}, nil, fmt.Errorf("%w: frame bytes before", errMalformed)
	}
	return frameHeader{count: count, before: before}, rest[n+m:], nil
}

// unpacker opens stored frames. Safe for concurrent use.
type unpacker struct {
	zstd *zstd.Decoder
}

func newUnpacker() (*unpacker, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxRawBytes))
	if err != nil {
		return nil, fmt.Errorf("journal: zstd decoder: %w", err)
	}
	return &unpacker{zstd: dec}, nil
}

// changes unpacks a stored frame. The changes share their backing; stored may be reused afterwards.
func (u *unpacker) changes(stored []byte) ([]event.Change, error) {
	h, packed, err := readFrameHeader(stored)
	if err != nil {
		return nil, err
	}
	raw, err := u.zstd.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return decodeRaw(raw, h.count)
}
