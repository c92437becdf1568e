package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
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

// stored asks the stream's leader for a message by its sequence.
func (s *Sink) stored(ctx context.Context, l *link, sequence uint64) (storedMessage, error) {
	a, err := s.ask(ctx, l, "$JS.API.STREAM.MSG.GET."+s.cfg.Stream, fmt.Appendf(nil, `{"seq":%d}`, sequence))
	if err != nil {
		return storedMessage{}, err
	}
	if a.noResponder {
		return storedMessage{}, &sinks.UnavailableError{After: awayPause, Reason: fmt.Sprintf("stream %q does not answer, or does not exist", s.cfg.Stream), Err: nats.ErrNoResponders}
	}
	var answer struct {
		Error   *apiError     `json:"error"`
		Message storedMessage `json:"message"`
	}
	if err := json.Unmarshal(a.data, &answer); err != nil {
		return storedMessage{}, fmt.Errorf("JetStream's answer about message %d of stream %q: %w", sequence, s.cfg.Stream, err)
	}
	if answer.Error != nil && answer.Error.ErrCode != codeNoMessage {
		return storedMessage{}, classify(s.cfg.Stream, s.pattern, answer.Error)
	}
	return answer.Message, nil
}
