package state

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/klauspost/compress/s2"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A segment is a message with entries in the order of writing; internal/state/FORMAT.md specifies it. Its payload is a
// byte for the encoding, and what [sinks.AppendEntries] has made of the entries.
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
	if err != nil {
		return err
	}
	return sinks.DecodeEntries(entries, each)
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
