package broker

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Arrivals notes when each state of an object became readable at a broker.
type Arrivals struct {
	client *kgo.Client
	done   chan error
	times  map[uint64]time.Time // of the first record, by resourceVersion
}

// Follow reads everything that arrives from now on.
func Follow(address string, topics []string) (*Arrivals, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMinBytes(1), kgo.FetchMaxBytes(16<<20),
	)
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	a := &Arrivals{client: client, done: make(chan error, 1), times: map[uint64]time.Time{}}
	go func() { a.done <- a.follow() }()
	return a, nil
}

func (a *Arrivals) follow() error {
	for {
		fetches := a.client.PollFetches(context.Background())
		now := time.Now()
		if fetches.IsClientClosed() {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("broker: %w", err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if rv, ok := firstVersion(record.Value); ok && a.times[rv].IsZero() {
				a.times[rv] = now
			}
		})
	}
}

// Close ends the reading and returns the times, by resourceVersion.
func (a *Arrivals) Close() (map[uint64]time.Time, error) {
	a.client.Close()
	err := <-a.done
	return a.times, err
}

// firstVersion returns the first resourceVersion in a record, which is that of its object in watch frames and in the records
// of the exporter.
func firstVersion(value []byte) (uint64, bool) {
	_, rest, found := bytes.Cut(value, []byte(`"resourceVersion":"`))
	digits, _, closed := bytes.Cut(rest, []byte(`"`))
	rv, err := strconv.ParseUint(string(digits), 10, 64)
	return rv, found && closed && err == nil
}
