package journal

import (
	"errors"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// NewestDeadLetters returns at most so many dead letters of a sink, that with the highest offset first. It reads the disk. A
// sink that is not known has none.
func (j *Journal) NewestDeadLetters(sink string, most int) ([]event.DeadLetter, error) {
	done, err := j.use()
	if err != nil {
		return nil, err
	}
	defer done()
	newest, err := j.newestDeadLetters(sink, most)
	return newest, j.checked(fmt.Sprintf("dead letters of sink %q", sink), err)
}

func (r reader) newestDeadLetters(sink string, most int) (newest []event.DeadLetter, err error) {
	it, err := r.iter(codec.AppendNamePrefix(nil, codec.PrefixDead, sink))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.Last(); it.Valid() && len(newest) < most; it.Prev() {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		d, err := r.deadLetter(it.Key(), value)
		if err != nil {
			return nil, err
		}
		newest = append(newest, d)
	}
	return newest, it.Error()
}
