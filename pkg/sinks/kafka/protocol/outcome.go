package protocol

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
)

// Outcome says what the answer to a produce request means for the batch that was sent. The documentation of package kafka
// has the table for people.
type Outcome int

// The outcomes.
const (
	Unsettled     Outcome = iota // may or may not be written: the same bytes again, after a look at who leads the partition
	Accepted                     // durably written, now or by an earlier attempt
	TooLarge                     // never written as a whole: halve; a single record is rejected
	Invalid                      // never written while the offending record is in it: halve; a single record is rejected
	Corrupt                      // damaged on the way, or never writable: three tries, then as invalid
	OutOfSequence                // the broker does not know our numbering: a new epoch, numbered from 0
	Fenced                       // the broker knows a newer epoch of our producer ID: a new ID, numbered from 0
	Mistimed                     // never written with this timestamp: the same records with another one, or none
	Unauthorized                 // nothing is written until someone changes credentials or rights: hold the sink
)

// outcomes by Kafka error code (kafka.apache.org/protocol#protocol_error_codes). A code that is not here is unsettled:
// loss must never come from a guess.
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
	kafka.TopicAuthorizationFailed:           Unauthorized,  // 29
	kafka.ClusterAuthorizationFailed:         Unauthorized,  // 31
	kafka.TransactionalIDAuthorizationFailed: Unauthorized,  // 53
	kafka.SASLAuthenticationFailed:           Unauthorized,  // 58
	kafka.UnsupportedSASLMechanism:           Unauthorized,  // 33
	kafka.IllegalSASLState:                   Unauthorized,  // 34
}

// ClassifyError reads the outcome of a request: nil, an error with a Kafka code in it, or one of the network.
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

// IsBrokerError says whether err is an answer of a broker, and not of the network.
func IsBrokerError(err error) bool {
	var code kafka.Error
	return errors.As(err, &code)
}

// CodeError turns an error code and the broker's words about it into an error; nil for code 0.
func CodeError(code int16, words string) error {
	switch {
	case code == 0:
		return nil
	case words == "":
		return kafka.Error(code)
	default:
		return fmt.Errorf("%w: %s", kafka.Error(code), words)
	}
}
