package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stream is where configs/demo.yaml sends changes. The exporter creates it.
const stream = "K8S"

// lookEvery is how often a condition without a signal is polled.
const lookEvery = 50 * time.Millisecond

// patience is how long an answer is waited for on a machine that has much else to do.
const patience = time.Minute

// subscriber reads the stream from its beginning, as any consumer would: it knows nothing of the exporter.
type subscriber struct {
	connection *nats.Conn
	cancel     context.CancelFunc
	done       chan struct{} // closed when run has returned
	err        error         // of run; written before done is closed
}

// subscribe begins to read and calls hear with every event of an object and every gap, one after the other. It reads until
// close.
func subscribe(url string, hear func(*event)) (*subscriber, error) {
	connection, err := nats.Connect(url, nats.Name("demo"), nats.Timeout(patience))
	if err != nil {
		return nil, fmt.Errorf("subscribe at %s: %w", url, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &subscriber{connection: connection, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = s.run(ctx, hear)
	}()
	return s, nil
}

func (s *subscriber) run(ctx context.Context, hear func(*event)) error {
	js, err := jetstream.New(s.connection, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		return err
	}
	if err := awaitStream(ctx, js); err != nil {
		return err
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		e, err := parseEvent(message.Data())
		if err != nil {
			return err
		}
		if !e.framesSnapshot() {
			hear(e)
		}
	}
}

// awaitStream returns when the exporter has created the stream.
func awaitStream(ctx context.Context, js jetstream.JetStream) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		_, err := js.Stream(ctx, stream)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// close stops reading and returns why reading had ended before, if it had.
func (s *subscriber) close() error {
	s.cancel()
	<-s.done
	s.connection.Close()
	if errors.Is(s.err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("subscriber: %w", s.err)
}
