package nats

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// headerReserve is more than the headers that a publisher adds to an encoded message, in bytes.
const headerReserve = 1 << 10

// SizeLimit implements [sinks.SizeAnnouncer] with max_msg_size of the stream and max_payload of the server.
func (s *Sink) SizeLimit(ctx context.Context, _ sinks.Lane) (fits func(sinks.Message) bool, err error) {
	l, err := s.connector.connectedLink(ctx)
	if err != nil {
		return nil, err
	}
	found, err := s.cfg.streamClient(l).RequireInfo(ctx)
	if err != nil {
		return nil, err
	}
	limit := int(l.Conn().MaxPayload())
	if most := int(found.Config.MaxMsgSize); most > 0 {
		limit = min(limit, most)
	}
	return func(m sinks.Message) bool {
		msg := s.encoder.newMessage()
		buffer := s.encoder.encodeChange(msg, m)
		defer s.encoder.releaseBuffer(msg, buffer)
		return msg.Size()+headerReserve <= limit
	}, nil
}
