package bus

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// readTimeout bounds one Read, so that a bus that is away costs the caller a moment and not the test's deadline.
const readTimeout = time.Minute

// partition is one of a topic.
type partition struct {
	topic  string
	number int32
}

// Kafka reads all topics with a common prefix.
type Kafka struct {
	// Form is set before the first Read where records are not in the native format.
	Form

	client *kgo.Client
	prefix string
	next   map[partition]int64 // offset of the record to read next
}

var _ Reader = (*Kafka)(nil)

// NewKafka returns a reader of all topics with the prefix, also of those that are created later. It
// connects with the first Read.
func NewKafka(brokers []string, prefix string) (*Kafka, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.MetadataMinAge(50*time.Millisecond), // topics appear during a test
		kgo.MetadataMaxAge(time.Second),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.RetryTimeout(5*time.Second),
		kgo.KeepControlRecords(), // the ends of partitions count them
	)
	if err != nil {
		return nil, err
	}
	return &Kafka{client: client, prefix: prefix, next: make(map[partition]int64)}, nil
}

// Name returns "kafka".
func (k *Kafka) Name() string { return "kafka" }

// Close closes the client.
func (k *Kafka) Close() { k.client.Close() }

// Read reads all partitions up to their present ends. Order holds within a partition.
func (k *Kafka) Read(ctx context.Context) ([]Record, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	partitions, ends, err := k.look(ctx)
	if err != nil {
		return nil, err
	}
	k.follow(partitions)
	var records []Record
	for !k.reached(ends) {
		fetches := k.client.PollFetches(ctx)
		var failed error
		fetches.EachRecord(func(r *kgo.Record) {
			record, more, err := k.take(r)
			if err != nil && failed == nil {
				failed = err
			}
			if more {
				records = append(records, record)
			}
		})
		if failed == nil {
			failed = fetches.Err()
		}
		if failed != nil {
			return records, failed
		}
	}
	return records, nil
}

func (k *Kafka) take(r *kgo.Record) (record Record, more bool, err error) {
	p := partition{r.Topic, r.Partition}
	if next := k.next[p]; r.Offset < next {
		return Record{}, false, wrong(fmt.Errorf("partition %v: offset %d was read twice", p, r.Offset))
	}
	k.next[p] = r.Offset + 1
	if r.Attrs.IsControl() { // of the transactions by which an exporter keeps older ones out
		return Record{}, false, nil
	}
	headers := make(map[string]string, len(r.Headers))
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	record, more, err = k.read(fmt.Sprintf("%s/%d", r.Topic, r.Partition), string(r.Key), headers, r.Value)
	record.Appended = r.Timestamp
	return record, more, err
}

// look returns all partitions and their ends. It asks again where a partition has no leader yet, as just after a topic was
// created or the broker came back.
func (k *Kafka) look(ctx context.Context) ([]partition, map[partition]int64, error) {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		partitions, err := k.partitions(ctx)
		var ends map[partition]int64
		if err == nil {
			ends, err = k.ends(ctx, partitions)
		}
		if err == nil || !kerr.IsRetriable(err) {
			return partitions, ends, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// partitions asks which there are.
func (k *Kafka) partitions(ctx context.Context) ([]partition, error) {
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, k.client)
	if err != nil {
		return nil, err
	}
	var found []partition
	for _, topic := range answer.Topics {
		if topic.Topic == nil || !strings.HasPrefix(*topic.Topic, k.prefix) {
			continue
		}
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return nil, fmt.Errorf("topic %s: %w", *topic.Topic, err)
		}
		for _, p := range topic.Partitions {
			found = append(found, partition{*topic.Topic, p.Partition})
		}
	}
	return found, nil
}

// ends asks for the offsets after the newest records.
func (k *Kafka) ends(ctx context.Context, partitions []partition) (map[partition]int64, error) {
	ends := make(map[partition]int64)
	if len(partitions) == 0 {
		return ends, nil
	}
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	byTopic := make(map[string][]kmsg.ListOffsetsRequestTopicPartition)
	for _, p := range partitions {
		ask := kmsg.NewListOffsetsRequestTopicPartition()
		ask.Partition, ask.Timestamp = p.number, -1 // -1 asks for the end
		byTopic[p.topic] = append(byTopic[p.topic], ask)
	}
	for name, asks := range byTopic {
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic, topic.Partitions = name, asks
		request.Topics = append(request.Topics, topic)
	}
	answer, err := request.RequestWith(ctx, k.client)
	if err != nil {
		return nil, err
	}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("end of %s/%d: %w", topic.Topic, p.Partition, err)
			}
			ends[partition{topic.Topic, p.Partition}] = p.Offset
		}
	}
	return ends, nil
}

// follow begins to fetch partitions that are new.
func (k *Kafka) follow(partitions []partition) {
	added := make(map[string]map[int32]kgo.Offset)
	for _, p := range partitions {
		if _, known := k.next[p]; known {
			continue
		}
		k.next[p] = 0
		if added[p.topic] == nil {
			added[p.topic] = make(map[int32]kgo.Offset)
		}
		added[p.topic][p.number] = kgo.NewOffset().At(0)
	}
	if len(added) > 0 {
		k.client.AddConsumePartitions(added)
	}
}

// Forget makes Read begin at the start of a topic that is recreated under its name.
func (k *Kafka) Forget(topic string) {
	k.client.PurgeTopicsFromConsuming(topic)
	maps.DeleteFunc(k.next, func(p partition, _ int64) bool { return p.topic == topic })
}

func (k *Kafka) reached(ends map[partition]int64) bool {
	for p, end := range ends {
		if k.next[p] < end {
			return false
		}
	}
	return true
}
