package nats

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/form"
)

// storedState is the stored state (see [sinks.Stateful]). While changes are sent in batches there is an epoch, and the first
// three numbers are those of streamEnd: whether the stream's end is known, its last sequence, and the newest offset in it.
// Then follow those of idProgress: the highest acknowledged sequence, resendThrough, lossCount, and three for each
// checkpoint.
type storedState struct {
	epoch  string
	values []uint64
}

const (
	stateFormat = 1

	batchValues, progressValues, checkpointValues = 3, 3, 3 // numbers of each part
)

// codeState refuses another number of values than the parts have.
func codeState(f *form.Coder, s *storedState) {
	f.CodeFormat(stateFormat)
	f.CodeText(&s.epoch)
	form.CodeList(f, &s.values, 1, (*form.Coder).CodeUvarint)
	rest := len(s.values) - progressValues
	if s.epoch != "" {
		rest -= batchValues
	}
	if rest < 0 || rest%checkpointValues != 0 || rest > maxCheckpoints*checkpointValues {
		f.Fail()
	}
}

// RestoreState implements [sinks.Stateful]. It resumes where the previous process ended, and allows to publish again after a
// loss.
func (s *Sink) RestoreState(state []byte, newest uint64, save func(context.Context) error) error {
	s.ids.forgetAcked()
	batched := s.end.applyRestore(newest, save)
	sentByID := s.ids.progress.applyRestore()
	if state == nil || newest == 0 || sentByID || batched { // this process knows more than any stored state
		return nil
	}
	var stored storedState
	if err := form.DecodeValue("state of a NATS sink", state, codeState, &stored); err != nil {
		return err
	}
	if stored.epoch == "" {
		s.ids.progress.setAttempted(newest)
	} else {
		s.end.loadState(stored.epoch, stored.values)
		stored.values = stored.values[batchValues:]
	}
	s.ids.progress.loadState(stored.values)
	return nil
}

// State implements [sinks.Stateful]. It returns the end of the stream as known to the way in use: the epoch and the newest
// change for batches, checkpoints for message IDs.
func (s *Sink) State(low uint64) []byte {
	epoch, values := s.end.stateValues()
	values = append(values, s.ids.progress.stateValues(low)...)
	return form.EncodeValue(nil, codeState, &storedState{epoch, values})
}
