package nats

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// storedMessage is a message as the stream holds it ($JS.API.STREAM.MSG.GET, ADR-1). The zero value is none.
type storedMessage struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Header   []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`

	decoded nats.Header // in place of Header, where the message did not come as JSON
}

func (m storedMessage) header(name string) string {
	if m.decoded != nil {
		return m.decoded.Get(name)
	}
	header, err := nats.DecodeHeadersMsg(m.Header)
	if err != nil {
		return ""
	}
	return header.Get(name)
}

// place is what a message of a batch of ours says of itself.
func (m storedMessage) place() (placeInStream, bool) { return readPlace(m.header(headerOffset)) }

// deadLetter says whether an exporter has put it there beside the changes.
func (m storedMessage) deadLetter() bool {
	return strings.Contains(m.header(nats.MsgIdHdr), deadLetterID)
}
