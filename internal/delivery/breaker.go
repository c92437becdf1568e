package delivery

import (
	"errors"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// tolerated is how many changes in a row are believed to be rejected for what they are. A destination that rejects more
// than that, and accepts nothing, is away, and not a graveyard for the history.
const tolerated = 4

// breaker tells rejected changes from a destination, or a lane, that rejects everything. Its zero value is ready; it is
// safe for concurrent use.
type breaker struct {
	rejections atomic.Int64 // in a row, over all lanes
}

// accepted notes that the destination has accepted something, through whichever lane.
func (b *breaker) accepted(l *lane) {
	l.rejections = 0
	b.rejections.Store(0)
}

// rejected turns the rejection of the change at an offset into a failure, after which the same change is tried again, when
// too many others came before it in a row.
func (b *breaker) rejected(l *lane, offset uint64, err error) error {
	if l.tolerated == offset { // it waits to become a dead letter
		return err
	}
	switch l.rejections++; {
	case b.rejections.Add(1) > tolerated:
		return &sinks.UnavailableError{
			Reason: "every change is rejected and none accepted: is this the right destination? The last was " + err.Error(),
		}
	case l.rejections > tolerated:
		return errors.New("every change of this lane is rejected and none accepted; the last was " + err.Error())
	}
	l.tolerated = offset
	return err
}
