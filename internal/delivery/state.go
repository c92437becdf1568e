package delivery

import (
	"encoding/binary"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// resume tells a sink whose lanes may change which of them are not finished.
func (p *Pipeline) resume() {
	changing, ok := p.sink.(sinks.Repartitioner)
	if !ok {
		return
	}
	changing.Resume(p.backlog.unfinished())
}

// restore hands a stateful sink what it left with the stored cursor. A state counts only under the selection it was made
// with: else the sink could take one message for another.
func (p *Pipeline) restore() {
	if p.stateful == nil {
		return
	}
	selection, state, ok := cutState(p.restored)
	if !ok || selection != p.cfg.Selection {
		state = nil
		if p.restored != nil {
			p.log.Info("what goes where has changed, by the configuration or the program: " +
				"what was in flight when it last ended, if anything, is sent again")
		}
	}
	p.restored = nil
	if err := p.stateful.Restore(state, p.cfg.Newest, p.store); err != nil {
		p.log.Warn("what the sink remembers cannot be read: what was in flight when it last ended is sent again", "error", err)
	}
}

// state returns what is stored as Cursor.State: the selection, behind its length, and the state of the sink.
func (p *Pipeline) state(low uint64) []byte {
	if p.stateful == nil {
		return nil
	}
	b := binary.AppendUvarint(nil, uint64(len(p.cfg.Selection)))
	b = append(b, p.cfg.Selection...)
	return append(b, p.stateful.State(low)...)
}

func cutState(b []byte) (selection string, state []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", nil, false
	}
	b = b[size:]
	return string(b[:n]), b[n:], true
}
