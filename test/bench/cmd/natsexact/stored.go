package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// patience is how long an answer is waited for on a machine that has much else to do.
const patience = time.Minute

// eachHeader calls each with the header of every message that a stream holds at the moment of the call, in their order, and
// returns the first error of it. ctx bounds the whole. The connection is its own, and closed when it returns.
func eachHeader(ctx context.Context, url, stream string, each func(nats.Header) error) error {
	closed := make(chan struct{})
	nc, err := nats.Connect(url, nats.Timeout(patience), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return err
	}
	defer func() { nc.Close(); <-closed }()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		return err
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range s.CachedInfo().State.Msgs {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if err := each(m.Headers()); err != nil {
			return err
		}
	}
	return nil
}
