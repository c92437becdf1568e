package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
)

// storeEvery is how often delivery stores its cursor.
const storeEvery = 200 * time.Millisecond

// cursor is what a process leaves to the next one: how far everything was acknowledged, and the sink's state.
type cursor struct {
	file string
	sink *nats.Sink

	mu    sync.Mutex // held while it is stored
	acked struct {
		sync.Mutex
		upTo uint64
	}
}

func (c *cursor) load() (upTo uint64, state []byte, err error) {
	b, err := os.ReadFile(c.file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	return binary.BigEndian.Uint64(b), b[8:], nil
}

// store does as delivery: the position first, then the state, both in one write.
func (c *cursor) store(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acked.Lock()
	upTo := c.acked.upTo
	c.acked.Unlock()
	b := append(binary.BigEndian.AppendUint64(nil, upTo), c.sink.State(upTo)...)
	if err := os.WriteFile(c.file+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(c.file+".new", c.file)
}

func (c *cursor) reach(upTo uint64) {
	c.acked.Lock()
	defer c.acked.Unlock()
	c.acked.upTo = upTo
}

// deliver publishes the changes from where the process before had stored that it was.
func deliver(ctx context.Context, urls, file string, messages uint64) (err error) {
	s, err := nats.New(nats.Config{URL: urls, Stream: stream, Subject: "exact.{group}.{resource}.{namespace}.{name}", AckTimeout: 2 * time.Second,
		Create: nats.Create{Enabled: true, Replicas: 3}}, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(context.Background())) }()
	c := &cursor{file: file, sink: s}
	done, state, err := c.load()
	if err != nil {
		return err
	}
	c.reach(done)
	if err := s.RestoreState(state, messages, c.store); err != nil {
		return err
	}
	storing, stop := context.WithCancel(ctx)
	var storer sync.WaitGroup
	storer.Go(func() {
		for storing.Err() == nil {
			select {
			case <-time.After(storeEvery):
				_ = c.store(ctx) // what is stored later is as good
			case <-storing.Done():
			}
		}
	})
	defer storer.Wait()
	defer stop()
	for done < messages {
		n, err := publish(ctx, s, done, min(messages-done, 2000))
		done += n
		c.reach(done)
		var lost *sinks.LostError
		if ctx.Err() != nil || errors.As(err, &lost) {
			return errors.Join(ctx.Err(), err)
		}
		if err != nil {
			<-time.After(20 * time.Millisecond)
		}
	}
	return c.store(ctx)
}

func publish(ctx context.Context, s *nats.Sink, after, count uint64) (uint64, error) {
	const objects = 997
	batch := make([]sinks.Message, count)
	for i := range batch {
		offset := after + uint64(i) + 1
		name := fmt.Sprint("web-", offset%objects)
		batch[i] = sinks.Message{Offset: offset, Change: &event.Change{Type: event.Updated, Cluster: "exact",
			Resource:  event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "shop", Name: name, UID: name, ResourceVersion: fmt.Sprint(offset), After: []byte(`{"kind":"Pod"}`)}}
	}
	lane, err := s.Lane(batch[0].Change)
	if err != nil {
		return 0, err
	}
	n, err := s.Publish(ctx, lane, batch)
	return uint64(n), err
}
