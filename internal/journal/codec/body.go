package codec

import (
	"fmt"

	"github.com/klauspost/compress/s2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	bodyFormat = 1
	// maxBodyBytes bounds what a stored body may claim to unpack to.
	maxBodyBytes = maxRawBytes
)

// AppendBody appends the stored form of a body. packed is scratch.
func AppendBody(b, packed []byte, body *event.Body) (stored, scratch []byte) {
	b = AppendString(AppendString(append(b, bodyFormat), body.UID), body.ResourceVersion)
	packed = s2.EncodeSnappy(packed[:cap(packed)], body.Raw)
	return append(b, packed...), packed
}

// DecodeBody is the inverse of AppendBody. It keeps nothing of stored.
func DecodeBody(key string, stored []byte) (event.Body, error) {
	s := scanner{s: string(stored)}
	format := s.byte()
	body := event.Body{Key: key, UID: s.string(), ResourceVersion: s.string()}
	n, err := s2.DecodedLen([]byte(s.s))
	if err == nil && !s.failed && format == bodyFormat && n <= maxBodyBytes {
		body.Raw, err = s2.Decode(nil, []byte(s.s))
	} else {
		err = ErrMalformed
	}
	if err != nil {
		return event.Body{}, fmt.Errorf("%w: body of %q", ErrMalformed, key)
	}
	return body, nil
}
