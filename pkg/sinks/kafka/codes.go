package kafka

import (
	"errors"

	"github.com/segmentio/kafka-go"
)

// verdict says what the answer to a produce request means for the batch that was sent. doc.go has the table for people.
type verdict int

const (
	unsettled    verdict = iota // may or may not be written: the same bytes again, after a look at who leads the partition
	accepted                    // durably written, now or by an earlier attempt
	tooLarge                    // never written as a whole: halve; a single record is rejected
	invalid                     // never written while the offending record is in it: halve; a single record is rejected
	corrupt                     // damaged on the way, or never writable: three tries, then as invalid
	resequenced                 // the broker does not know our numbering: a new epoch, numbered from 0
	disowned                    // the broker knows a newer epoch of our producer ID: a new ID, numbered from 0
	unauthorized                // nothing is written until someone changes credentials or rights: hold the sink
)

// verdicts by Kafka error code (kafka.apache.org/protocol#protocol_error_codes). A code that is not here is unsettled:
// loss must never come from a guess.
var verdicts = map[kafka.Error]verdict{
	0:                                        accepted,
	kafka.DuplicateSequenceNumber:            accepted,     // 46
	kafka.MessageSizeTooLarge:                tooLarge,     // 10
	kafka.RecordListTooLarge:                 tooLarge,     // 18
	kafka.InvalidRecord:                      invalid,      // 87
	kafka.InvalidMessage:                     corrupt,      // 2
	kafka.OutOfOrderSequenceNumber:           resequenced,  // 45
	kafka.UnknownProducerId:                  resequenced,  // 59
	kafka.InvalidProducerEpoch:               disowned,     // 47
	kafka.TopicAuthorizationFailed:           unauthorized, // 29
	kafka.ClusterAuthorizationFailed:         unauthorized, // 31
	kafka.TransactionalIDAuthorizationFailed: unauthorized, // 53
	kafka.SASLAuthenticationFailed:           unauthorized, // 58
	kafka.UnsupportedSASLMechanism:           unauthorized, // 33
	kafka.IllegalSASLState:                   unauthorized, // 34
}

// judge reads the outcome of a request: nil, an error with a Kafka code in it, or one of the network.
func judge(err error) verdict {
	if err == nil {
		return accepted
	}
	var code kafka.Error
	if errors.As(err, &code) {
		return verdicts[code]
	}
	return unsettled
}

// fromBroker says whether err is an answer of a broker, and not of the network or of the library.
func fromBroker(err error) bool {
	var code kafka.Error
	return errors.As(err, &code) && !errors.Is(err, errNotRouted)
}
