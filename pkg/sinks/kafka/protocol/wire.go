package protocol

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrMalformed is the error of a response that cannot be parsed, or does not match the request.
var ErrMalformed = errors.New("the broker's response is malformed")

// Versions are the newest versions in use of each request, by API key. A broker gets an older one if it lacks that. Produce
// is used in a newer one, too, see [NewProduceRequest].
var Versions = map[int16]int16{
	int16(kmsg.Produce):              8,
	int16(kmsg.Fetch):                11,
	int16(kmsg.ListOffsets):          5,
	int16(kmsg.Metadata):             12, // topics have IDs from version 10 on
	int16(kmsg.FindCoordinator):      2,
	int16(kmsg.SASLHandshake):        1,
	int16(kmsg.ApiVersions):          0,
	int16(kmsg.CreateTopics):         5,
	int16(kmsg.InitProducerID):       4,
	int16(kmsg.OffsetForLeaderEpoch): 3,
	int16(kmsg.AddPartitionsToTxn):   3,
	int16(kmsg.EndTxn):               3,
	int16(kmsg.DescribeConfigs):      3,
	int16(kmsg.SASLAuthenticate):     1,
}

// AtVersion returns a copy of a request for a broker whose newest version of it this is. The request itself may be on its
// way to another broker.
func AtVersion(r kmsg.Request, newest int16) kmsg.Request {
	clone := reflect.New(reflect.TypeOf(r).Elem())
	clone.Elem().Set(reflect.ValueOf(r).Elem())
	own := clone.Interface().(kmsg.Request)
	own.SetVersion(min(newest, Versions[r.Key()]))
	return own
}

// requestBuffers holds encoded requests, which may have some megabytes of batches.
var requestBuffers = sync.Pool{New: func() any { return new([]byte) }}

// WriteRequest writes a request, whose version is set, with its header.
func WriteRequest(w io.Writer, r kmsg.Request, correlation int32, clientID string) error {
	buffer := requestBuffers.Get().(*[]byte)
	defer requestBuffers.Put(buffer)
	*buffer = kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)).AppendRequest((*buffer)[:0], r, correlation)
	_, err := w.Write(*buffer)
	return err
}

// maxAnswer bounds a response, in bytes.
const maxAnswer = 64 << 20

// ReadResponse reads the response to a request and checks its correlation ID.
func ReadResponse(from *bufio.Reader, r kmsg.Request, correlation int32) (kmsg.Response, error) {
	var head struct{ Size, Correlation int32 }
	if err := binary.Read(from, binary.BigEndian, &head); err != nil {
		return nil, err
	}
	size := int(head.Size) - binary.Size(head.Correlation)
	switch {
	case size < 0 || size > maxAnswer:
		return nil, fmt.Errorf("a response of %d bytes", size)
	case head.Correlation != correlation:
		return nil, fmt.Errorf("response %d to request %d", head.Correlation, correlation)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(from, body); err != nil {
		return nil, err
	}
	answer := r.ResponseKind()
	if answer.IsFlexible() {
		if len(body) == 0 || body[0] != 0 { // no response has tagged fields in its header (KIP-482)
			return nil, ErrMalformed
		}
		body = body[1:]
	}
	if err := answer.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return answer, nil
}

// ThrottleTime returns the throttle time of a response; zero for one that has none.
func ThrottleTime(m kmsg.Response) time.Duration {
	if t, ok := m.(kmsg.ThrottleResponse); ok {
		ms, _ := t.Throttle()
		return time.Duration(ms) * time.Millisecond
	}
	return 0
}

// TopicID identifies a topic from its creation to its deletion (KIP-516, Kafka 2.8). A topic that is recreated under its
// name has another one. The zero value means that the broker reports none.
type TopicID [16]byte

// String returns the form of Kafka's own tools.
func (id TopicID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// ParseTopicID is the inverse of String.
func ParseTopicID(text string) (id TopicID, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	return TopicID(append(b, id[:]...)[:len(id)]), err == nil && len(b) == len(id)
}

const (
	acksAll = -1
	// producesByID is the version of Produce from which on topics have IDs instead of names (KIP-516, Kafka 4.1).
	producesByID = 13
)

// RecordBatch is an encoded record batch and its target.
type RecordBatch struct {
	Topic     string
	TopicID   TopicID // of the only topic that may take it, from Kafka 4.1 on; zero: the one that has the name
	Partition int32
	Bytes     []byte // must not change before the answer
}

// HasTopicID reports whether the batch is for one topic only, whatever its name.
func (b *RecordBatch) HasTopicID() bool { return b.TopicID != TopicID{} }

// NewProduceRequest returns a request with batches, each for a partition of its own, for a broker whose newest version of it
// this is. All batches have topic IDs, or none has.
func NewProduceRequest(newest int16, timeout time.Duration, batches ...RecordBatch) *kmsg.ProduceRequest {
	request, at := kmsg.NewPtrProduceRequest(), map[string]int{}
	request.SetVersion(min(newest, Versions[request.Key()]))
	byID := newest >= producesByID && len(batches) > 0 && batches[0].HasTopicID()
	if byID {
		request.SetVersion(producesByID)
	}
	request.Acks, request.TimeoutMillis = acksAll, int32(timeout.Milliseconds())
	for _, b := range batches {
		topic := b.Topic
		if byID {
			topic = string(b.TopicID[:])
		}
		i, known := at[topic]
		if !known {
			i, at[topic] = len(request.Topics), len(request.Topics)
			request.Topics = append(request.Topics, kmsg.ProduceRequestTopic{Topic: b.Topic, TopicID: b.TopicID})
		}
		request.Topics[i].Partitions = append(request.Topics[i].Partitions, kmsg.ProduceRequestTopicPartition{Partition: b.Partition, Records: b.Bytes})
	}
	return request
}

// Outcome is what the answer to a produce request means for the batch. The documentation of package kafka has the table.
type Outcome int

// The outcomes.
const (
	Unsettled     Outcome = iota // may or may not be written: send the same bytes again, to the present leader
	Accepted                     // durably written, now or by an earlier attempt
	TooLarge                     // cannot be written at this size: halve; reject a single record
	Invalid                      // cannot be written with the invalid record in it: halve; reject a single record
	Corrupt                      // corrupt on arrival: try three times, then as Invalid
	OutOfSequence                // the broker does not know our sequence: new epoch, numbered from 0
	Fenced                       // the broker knows a newer epoch of our producer ID: new ID, numbered from 0
	Mistimed                     // cannot be written with this timestamp: send the same records with another one, or none
	Unauthorized                 // cannot be written until credentials or rights are changed
	Miscoded                     // cannot be written with this compression: send the same records with another one
)

// outcomes by Kafka error code (kafka.apache.org/protocol#protocol_error_codes). Unknown codes are Unsettled: a change must
// not be dropped because of a guess.
var outcomes = map[kafka.Error]Outcome{
	0:                                        Accepted,
	kafka.DuplicateSequenceNumber:            Accepted,      // 46
	kafka.MessageSizeTooLarge:                TooLarge,      // 10
	kafka.RecordListTooLarge:                 TooLarge,      // 18
	kafka.InvalidRecord:                      Invalid,       // 87
	kafka.InvalidMessage:                     Corrupt,       // 2
	kafka.InvalidTimestamp:                   Mistimed,      // 32
	kafka.OutOfOrderSequenceNumber:           OutOfSequence, // 45
	kafka.UnknownProducerId:                  OutOfSequence, // 59
	kafka.InvalidProducerEpoch:               Fenced,        // 47
	kafka.ProducerFenced:                     Fenced,        // 90
	kafka.UnsupportedForMessageFormat:        Miscoded,      // 43
	kafka.UnsupportedCompressionType:         Miscoded,      // 76
	kafka.TopicAuthorizationFailed:           Unauthorized,  // 29
	kafka.ClusterAuthorizationFailed:         Unauthorized,  // 31
	kafka.TransactionalIDAuthorizationFailed: Unauthorized,  // 53
	kafka.SASLAuthenticationFailed:           Unauthorized,  // 58
	kafka.UnsupportedSASLMechanism:           Unauthorized,  // 33
	kafka.IllegalSASLState:                   Unauthorized,  // 34
}

// ClassifyError returns the outcome of a request from its error: nil, an error with a Kafka code, or a network error.
func ClassifyError(err error) Outcome {
	if err == nil {
		return Accepted
	}
	var code kafka.Error
	if errors.As(err, &code) {
		return outcomes[code]
	}
	return Unsettled
}

// IsBrokerError reports whether err comes from a broker rather than from the network.
func IsBrokerError(err error) bool {
	return errors.As(err, new(kafka.Error))
}

// CodeError returns the error of a code and the message of the broker, which may be nil; nil for code 0.
func CodeError(code int16, message *string) error {
	switch {
	case code == 0:
		return nil
	case message == nil || *message == "":
		return kafka.Error(code)
	}
	return fmt.Errorf("%w: %s", kafka.Error(code), *message)
}
