package nats

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// publishCore sends a batch in mode core and returns when the server has read it. The server does not report whether there
// is a subscriber.
func publishCore(ctx context.Context, l *connection.Link, e *encoder, batch []sinks.Message) (int, error) {
	before := l.LastError()
	msg := e.newMessage()
	n, err := 0, error(nil)
	for n < len(batch) && err == nil {
		if err = publishCoreMessage(ctx, l, e, msg, batch[n]); err == nil {
			n++
		}
	}
	if flushErr := l.Flush(ctx, before); flushErr != nil {
		n, err = 0, flushErr
	}
	return n, err
}

// publishCoreMessage hands one change to the client library.
func publishCoreMessage(ctx context.Context, l *connection.Link, e *encoder, msg *message, m sinks.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	buffer := e.encodeChange(msg, m)
	defer e.releaseBuffer(msg, buffer)
	return l.Publish(ctx, msg.Msg)
}
