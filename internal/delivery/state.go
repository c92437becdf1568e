package delivery

import (
	"encoding/binary"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// resumeLanes tells a sink whose lanes may change which of them are not finished.
func (p *Pipeline) resumeLanes() {
	changing, ok := p.sink.(sinks.Repartitioner)
	if !ok {
		return
	}
	changing.ResumeLanes(p.backlog.laggingLanes())
}

// restoreState hands a stateful sink what it left with the stored cursor. A state counts only under the selection it was made
// with: else the sink could take one message for another.
func (p *Pipeline) restoreState() {
	if p.stateful == nil {
		return
	}
	selection, state, ok := splitState(p.restoredState)
	if !ok || selection != p.cfg.RoutingFingerprint {
		state = nil
		if p.restoredState != nil {
			p.log.Info("what goes where has changed, by the configuration or the program: " +
				"what was in flight when it last ended, if anything, is sent again")
		}
	}
	p.restoredState = nil
	if err := p.stateful.RestoreState(state, p.cfg.NewestOffset, p.storeProgress); err != nil {
		p.log.Warn("what the sink remembers cannot be read: what was in flight when it last ended is sent again", "error", err)
	}
}

// encodeState returns what is stored as Cursor.State: the selection, behind its length, and the state of the sink.
func (p *Pipeline) encodeState(low uint64) []byte {
	if p.stateful == nil {
		return nil
	}
	b := binary.AppendUvarint(nil, uint64(len(p.cfg.RoutingFingerprint)))
	b = append(b, p.cfg.RoutingFingerprint...)
	return append(b, p.stateful.State(low)...)
}

func splitState(b []byte) (selection string, state []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", nil, false
	}
	b = b[size:]
	return string(b[:n]), b[n:], true
}
