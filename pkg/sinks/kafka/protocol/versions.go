package protocol

import (
	"encoding/base64"

	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"
)

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

// Negotiated is a request whose form depends on the newest version that a broker has of it.
type Negotiated interface {
	kproto.Message
	// AtVersion returns the request for a broker whose newest version this is.
	AtVersion(newest int16) kproto.Message
}

// MetadataRequest asks for topics. The answer is a [ForeignResponse].
type MetadataRequest struct {
	Topics []string
	All    bool // instead of Topics; only for their names: topics of others are not judged
}

var _ Negotiated = MetadataRequest{}

// newestMetadata is the newest version of the request that is used; topics have IDs from version 10 on.
const newestMetadata = 12

// ApiKey implements [kproto.Message].
func (MetadataRequest) ApiKey() kproto.ApiKey { return kproto.Metadata }

// AtVersion implements [Negotiated].
func (r MetadataRequest) AtVersion(newest int16) kproto.Message {
	request := kmsg.NewPtrMetadataRequest()
	request.SetVersion(min(newest, newestMetadata))
	if !r.All {
		request.Topics = []kmsg.MetadataRequestTopic{} // null asks for all
	}
	for i := range r.Topics {
		one := kmsg.NewMetadataRequestTopic()
		one.Topic = &r.Topics[i]
		request.Topics = append(request.Topics, one)
	}
	return ForeignRequest{request}
}
