package stream

import (
	"time"

	"github.com/nats-io/nats.go"
)

// Message is a stored message ($JS.API.STREAM.MSG.GET, ADR-1). The zero value is no message.
type Message struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Headers  []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`

	decoded nats.Header // in place of Headers, for a message that was read by direct access
}

// Header returns the first value of a header; "" if there is none.
func (m Message) Header(name string) string {
	if m.decoded != nil {
		return m.decoded.Get(name)
	}
	header, err := nats.DecodeHeadersMsg(m.Headers)
	if err != nil {
		return ""
	}
	return header.Get(name)
}
