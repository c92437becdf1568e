package kafka

import (
	"context"
	"io"

	kproto "github.com/segmentio/kafka-go/protocol"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// readBytes is how much of a partition is read at once, about.
const readBytes = 4 << 20

// storedRecord is a record as it lies in a partition.
type storedRecord struct {
	key     string
	null    bool // it has no value
	headers []kproto.Header
}

// header returns the value of a header; "" where there is none.
func (r storedRecord) header(name string) string {
	for _, h := range r.headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// readBack calls each for the records of a partition, in order, from an offset on up to the end that it has at the call,
// which it returns.
func (c *cluster) readBack(ctx context.Context, by lead, topic string, partition int32, from int64, each func(storedRecord)) (end int64, err error) {
	first, err := c.offsetAt(ctx, by, topic, partition, earliest)
	if err != nil {
		return 0, err
	}
	if end, err = c.offsetAt(ctx, by, topic, partition, latest); err != nil {
		return 0, err
	}
	for next := max(from, first); next < end; {
		answer, err := c.askOver(ctx, by.broker, forReading, protocol.NewFetch(topic, partition, by.epoch, next, readBytes))
		if err != nil {
			return 0, err
		}
		fetched, err := protocol.ReadFetch(answer.(*protocol.RawResponse))
		if err != nil {
			return 0, err
		}
		before := next
		next, err = fetched.Each(next, func(r *kproto.Record) error {
			key, err := keyOf(r)
			each(storedRecord{key, r.Value == nil, r.Headers})
			return err
		})
		if err != nil {
			return 0, err
		}
		if next == before {
			return 0, protocol.ErrMalformed
		}
	}
	return end, nil
}

func keyOf(r *kproto.Record) (string, error) {
	if r.Key == nil {
		return "", nil
	}
	b, err := io.ReadAll(r.Key)
	return string(b), err
}
