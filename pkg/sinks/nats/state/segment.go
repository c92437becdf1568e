package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/klauspost/compress/s2"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A segment is a message with entries in the order of writing; docs/nats.md specifies it. Its payload is a byte for the
// encoding, and for each entry the length of the key, the key, one more than the length of the value (0: the key is
// removed), and the value.
const (
	headerState     = "Kubecdc-State" // CLAIM NUMBER: the claim of the writer, and the number of the segment
	encodingPlain   = 0
	encodingS2      = 1
	minCompressSize = 512      // bytes
	maxDecompressed = 64 << 20 // of one segment, in bytes
	segmentMargin   = 4 << 10  // for headers and subject
	maxSegment      = 512 << 10
)

var errSegment = errors.New("not a segment of a state; it may be one of a later version of this program")

func appendEntry(dst []byte, e sinks.StateEntry) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(e.Key))), e.Key...)
	if e.Value == nil {
		return binary.AppendUvarint(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(e.Value))+1), e.Value...)
}

// encodeSegment returns the payload of a segment, compressed if that saves a tenth or more.
func encodeSegment(entries []byte) []byte {
	if len(entries) >= minCompressSize {
		packed := s2.Encode(make([]byte, s2.MaxEncodedLen(len(entries))), entries)
		if len(packed) < len(entries)/10*9 {
			return append([]byte{encodingS2}, packed...)
		}
	}
	return append([]byte{encodingPlain}, entries...)
}

// decodeSegment calls each for the entries of a segment. They refer to the memory of data, or of its decompressed form.
func decodeSegment(data []byte, each func(sinks.StateEntry) error) error {
	entries, err := decompressSegment(data)
	for err == nil && len(entries) > 0 {
		var e sinks.StateEntry
		if e, entries, err = decodeEntry(entries); err == nil {
			err = each(e)
		}
	}
	return err
}

func decompressSegment(data []byte) ([]byte, error) {
	switch {
	case len(data) > 0 && data[0] == encodingPlain:
		return data[1:], nil
	case len(data) > 0 && data[0] == encodingS2:
		if n, err := s2.DecodedLen(data[1:]); err != nil || n > maxDecompressed {
			return nil, errSegment
		}
		entries, err := s2.Decode(nil, data[1:])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errSegment, err)
		}
		return entries, nil
	}
	return nil, errSegment
}

func decodeEntry(b []byte) (e sinks.StateEntry, rest []byte, err error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return e, nil, errSegment
	}
	e.Key, b = b[n:n+int(size):n+int(size)], b[n+int(size):]
	size, n = binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n)+1 {
		return e, nil, errSegment
	}
	b = b[n:]
	if size == 0 {
		return e, b, nil
	}
	return sinks.StateEntry{Key: e.Key, Value: b[: size-1 : size-1]}, b[size-1:], nil
}

// segmentName is the value of the header Kubecdc-State.
type segmentName struct {
	claim  string
	number uint64 // increases by one from segment to segment; 0: the message is no segment
}

func (n segmentName) String() string { return n.claim + " " + strconv.FormatUint(n.number, 10) }

func parseSegmentName(header string) segmentName {
	claim, digits, _ := strings.Cut(header, " ")
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return segmentName{}
	}
	return segmentName{claim, number}
}
