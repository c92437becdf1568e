package nats

import (
	"context"
	"encoding/binary"
	"errors"
)

// The stored state (see [sinks.Stateful]) is a byte for the format, the length of the epoch, the epoch, and numbers
// (uvarint). While changes are sent in batches there is an epoch, and the first three numbers are those of streamEnd:
// whether the stream's end is known, its last sequence, and the newest offset in it. Then follow those of idProgress: the
// highest acknowledged sequence, resendThrough, lossCount, and three for each checkpoint.
const (
	stateFormatIDsOnly = 1 // without epoch and numbers of streamEnd
	stateFormat        = 2

	batchValues, progressValues, checkpointValues = 3, 3, 3 // numbers of each part
)

var errInvalidState = errors.New("not a state of the NATS sink")

// RestoreState implements [sinks.Stateful]. It resumes where the previous process ended, and allows to publish again after a
// loss.
func (s *Sink) RestoreState(state []byte, newest uint64, save func(context.Context) error) error {
	s.ids.forgetAcked()
	batched := s.end.applyRestore(newest, save)
	sentByID := s.ids.progress.applyRestore()
	if state == nil || newest == 0 || sentByID || batched { // this process knows more than any stored state
		return nil
	}
	epoch, values, err := decodeState(state)
	if err != nil {
		return err
	}
	if epoch == "" {
		s.ids.progress.setAttempted(newest)
	} else {
		s.end.loadState(epoch, values)
		values = values[batchValues:]
	}
	s.ids.progress.loadState(values)
	return nil
}

// State implements [sinks.Stateful]. It returns the end of the stream as known to the way in use: the epoch and the newest
// change for batches, checkpoints for message IDs.
func (s *Sink) State(low uint64) []byte {
	epoch, values := s.end.stateValues()
	values = append(values, s.ids.progress.stateValues(low)...)
	b := append([]byte{stateFormat, byte(len(epoch))}, epoch...)
	for _, v := range values {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

// decodeState decodes a stored state and checks the number of values.
func decodeState(b []byte) (epoch string, values []uint64, err error) {
	minValues := progressValues
	switch {
	case len(b) > 0 && b[0] == stateFormatIDsOnly:
		b = b[1:]
	case len(b) < 2 || b[0] != stateFormat || len(b) < 2+int(b[1]):
		return "", nil, errInvalidState
	default:
		end := 2 + int(b[1])
		epoch, b = string(b[2:end]), b[end:]
	}
	if epoch != "" {
		minValues += batchValues
	}
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return "", nil, errInvalidState
		}
		values, b = append(values, v), b[n:]
	}
	if rest := len(values) - minValues; rest < 0 || rest%checkpointValues != 0 || rest > maxCheckpoints*checkpointValues {
		return "", nil, errInvalidState
	}
	return epoch, values, nil
}
