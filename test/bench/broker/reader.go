package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Reader looks at the topics of a broker. It is not safe for concurrent use.
type Reader struct {
	address    string
	topics     []string
	partitions int
	client     *kgo.Client
}

// Open prepares a reader of topics that have so many partitions each. It connects to nothing yet.
func Open(address string, topics []string, partitions int) (*Reader, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	return &Reader{address: address, topics: topics, partitions: partitions, client: client}, nil
}

// Close drops the connections.
func (r *Reader) Close() { r.client.Close() }

// Count returns how many records the broker holds, with the markers by which a restart is fenced. It asks for the ends of
// the partitions only, so that it can be called often while a system is measured.
func (r *Reader) Count(ctx context.Context) (int64, error) {
	const latest = -1
	request := kmsg.NewPtrListOffsetsRequest()
	for _, name := range r.topics {
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = name
		for p := range int32(r.partitions) {
			partition := kmsg.NewListOffsetsRequestTopicPartition()
			partition.Partition, partition.Timestamp = p, latest
			topic.Partitions = append(topic.Partitions, partition)
		}
		request.Topics = append(request.Topics, topic)
	}
	response, err := request.RequestWith(ctx, r.client)
	if err != nil {
		return 0, fmt.Errorf("broker: ends of the partitions: %w", err)
	}
	var sum int64
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return 0, fmt.Errorf("broker: end of %s/%d: %w", topic.Topic, partition.Partition, err)
			}
			sum += partition.Offset
		}
	}
	return sum, nil
}

// Read calls add for every record that the broker holds now, those of one partition in order, and never for two at once.
// The record is valid during the call only. An error of add ends it after the fetch it came in.
func (r *Reader) Read(ctx context.Context, add func(*kgo.Record) error) error {
	total, err := r.Count(ctx)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(r.address), kgo.ConsumeTopics(r.topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(16<<20), kgo.FetchMaxPartitionBytes(4<<20), kgo.MaxConcurrentFetches(1), // what memory it takes
	)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	defer client.Close()
	for read := int64(0); read < total; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("broker: after %d of %d records: %w", read, total, err)
		}
		var failure error
		fetches.EachRecord(func(record *kgo.Record) {
			if read++; record.Attrs.IsControl() {
				return
			}
			failure = errors.Join(failure, add(record))
		})
		if failure != nil {
			return failure
		}
	}
	return nil
}
