package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS reads one JetStream stream.
type NATS struct {
	// Form is set before the first Read where messages are not in the native format.
	Form

	connection *nats.Conn
	jetstream  jetstream.JetStream
	stream     string
	next       uint64 // sequence to read next
}

var _ Reader = (*NATS)(nil)

// fencePrefix begins the subject of the messages by which an exporter keeps older ones out, see docs/nats.md.
const fencePrefix = "kubecdc.fence."

// batch is how many messages one request asks for.
const batch = 1000

// NewNATS returns a reader of a stream, which need not exist yet.
func NewNATS(url, stream string) (*NATS, error) {
	connection, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(connection)
	if err != nil {
		connection.Close()
		return nil, err
	}
	return &NATS{connection: connection, jetstream: js, stream: stream, next: 1}, nil
}

// Name returns "nats".
func (n *NATS) Name() string { return "nats" }

// Close closes the connection.
func (n *NATS) Close() { n.connection.Close() }

// Read reads the stream up to its present end. A stream that does not exist yet is empty.
func (n *NATS) Read(ctx context.Context) ([]Record, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	stream, err := n.jetstream.Stream(ctx, n.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	end := stream.CachedInfo().State.LastSeq
	if n.next > end {
		return nil, nil
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: n.next,
		InactiveThreshold: readTimeout, MemoryStorage: true,
	})
	if err != nil {
		return nil, err
	}
	var records []Record
	for n.next <= end {
		some, err := n.fetch(ctx, consumer, int(min(end-n.next+1, batch)))
		records = append(records, some...)
		if err != nil {
			return records, err
		}
	}
	return records, stream.DeleteConsumer(ctx, consumer.CachedInfo().Name)
}

// fetch reads the next count messages, which exist.
func (n *NATS) fetch(ctx context.Context, consumer jetstream.Consumer, count int) ([]Record, error) {
	messages, err := consumer.Fetch(count, jetstream.FetchContext(ctx))
	if err != nil {
		return nil, err
	}
	var records []Record
	came := 0
	for m := range messages.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return records, err
		}
		if meta.Sequence.Stream != n.next {
			return records, wrong(fmt.Errorf("stream %s: sequence %d came where %d was expected", n.stream, meta.Sequence.Stream, n.next))
		}
		if strings.HasPrefix(m.Subject(), fencePrefix) { // no change: it names the writer
			n.next++
			came++
			continue
		}
		headers := make(map[string]string, len(m.Headers()))
		for name := range m.Headers() {
			headers[name] = m.Headers().Get(name)
		}
		record, more, err := n.read(m.Subject(), headers["Kubecdc-Key"], headers, m.Data())
		if err != nil {
			return records, err
		}
		if more {
			record.DuplicateDetection = m.Headers().Get(nats.MsgIdHdr)
			records = append(records, record)
		}
		n.next++
		came++
	}
	if messages.Error() == nil && came < count {
		return records, fmt.Errorf("stream %s: %d of %d messages came", n.stream, came, count)
	}
	return records, messages.Error()
}
