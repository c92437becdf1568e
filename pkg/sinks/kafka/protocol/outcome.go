package protocol

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
)

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
	var code kafka.Error
	return errors.As(err, &code)
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
