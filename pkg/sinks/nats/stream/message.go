package stream

import (
	"time"

	"github.com/nats-io/nats.go"
)

// Message is a message as the stream holds it ($JS.API.STREAM.MSG.GET, ADR-1). The zero value is none.
type Message struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Headers  []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`

	decoded nats.Header // in place of Headers, where the message did not come as JSON
}

// Header returns the first value of a header; "" where there is none.
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
