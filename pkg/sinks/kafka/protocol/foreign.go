package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrMalformed is the error of a response that cannot be parsed, or does not match the request.
var ErrMalformed = errors.New("the broker's response is malformed")

// ForeignRequest is a request that kafka-go has no type for. Its version is set.
type ForeignRequest struct{ kmsg.Request }

// ForeignResponse is the response to a [ForeignRequest].
type ForeignResponse struct{ kmsg.Response }

// ApiKey implements [protocol.Message].
func (r ForeignRequest) ApiKey() protocol.ApiKey { return protocol.ApiKey(r.Key()) }

// ApiKey implements [protocol.Message].
func (r ForeignResponse) ApiKey() protocol.ApiKey { return protocol.ApiKey(r.Key()) }

// maxAnswer bounds the response to a foreign request, in bytes.
const maxAnswer = 64 << 20

// requestBuffers holds encoded requests, which may have some megabytes of batches.
var requestBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Write writes the request with its header.
func (r ForeignRequest) Write(w io.Writer, correlation int32, clientID string) error {
	formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID))
	buffer := requestBuffers.Get().(*[]byte)
	defer requestBuffers.Put(buffer)
	*buffer = formatter.AppendRequest((*buffer)[:0], r.Request, correlation)
	_, err := w.Write(*buffer)
	return err
}

// Read reads the response and checks its correlation ID.
func (r ForeignRequest) Read(from io.Reader, correlation int32) (protocol.Message, error) {
	var head struct{ Size, Correlation int32 }
	if err := binary.Read(from, binary.BigEndian, &head); err != nil {
		return nil, err
	}
	size := int(head.Size) - binary.Size(head.Correlation)
	switch {
	case size < 0 || size > maxAnswer:
		return nil, fmt.Errorf("a response of %d bytes", size)
	case head.Correlation != correlation:
		return nil, fmt.Errorf("response %d to request %d", head.Correlation, correlation)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(from, body); err != nil {
		return nil, err
	}
	answer := r.ResponseKind()
	if answer.IsFlexible() {
		if len(body) == 0 || body[0] != 0 { // no response has tagged fields in its header (KIP-482)
			return nil, ErrMalformed
		}
		body = body[1:]
	}
	if err := answer.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return ForeignResponse{answer}, nil
}

// ThrottleTime returns the throttle time of a response; zero for one that has none.
func ThrottleTime(m protocol.Message) time.Duration {
	if own, ok := m.(ForeignResponse); ok {
		if t, ok := own.Response.(kmsg.ThrottleResponse); ok {
			ms, _ := t.Throttle()
			return time.Duration(ms) * time.Millisecond
		}
		return 0
	}
	if field := reflect.Indirect(reflect.ValueOf(m)).FieldByName("ThrottleTimeMs"); field.IsValid() {
		return time.Duration(field.Int()) * time.Millisecond
	}
	return 0
}
