package journal

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

type bodyKey struct{ resource, key string }

// pendingBody is a body, or its deletion, that was appended and is not committed yet.
type pendingBody struct {
	id      bodyKey
	body    event.Body
	deleted bool
}

// bodyIndex holds the bodies that were appended and are not committed yet, and the names of resources with bodies. It is
// changed in the order of the queue; lock order: queue.mu, then mu. The queue holds the same bodies, and bounds them (I6).
type bodyIndex struct {
	mu        sync.Mutex
	pending   map[bodyKey]*pendingBody
	resources map[string]bool // those with a body, stored or pending
}

// reset forgets everything: no resource has a body.
func (b *bodyIndex) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending, b.resources = map[bodyKey]*pendingBody{}, map[string]bool{}
}

func (b *bodyIndex) recordStored(resource string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resources[resource] = true
}

// recordPending records and returns what an observation that is being queued does to bodies: it stores those that it has,
// and before them deletes those of removed objects.
func (b *bodyIndex) recordPending(o *event.Observation) (pending []*pendingBody) {
	b.mu.Lock()
	defer b.mu.Unlock()
	resource := o.Resource.String()
	if len(o.Bodies) > 0 {
		b.resources[resource] = true
	}
	if !b.resources[resource] {
		return nil
	}
	for _, key := range o.RemovedKeys {
		pending = append(pending, &pendingBody{id: bodyKey{resource, key}, deleted: true})
	}
	for i := range o.Bodies {
		pending = append(pending, &pendingBody{id: bodyKey{resource, o.Bodies[i].Key}, body: o.Bodies[i]})
	}
	for _, p := range pending {
		b.pending[p.id] = p
	}
	return pending
}

// removeCommitted forgets pending bodies that are stored now. Newer ones of the same objects stay.
func (b *bodyIndex) removeCommitted(committed []*pendingBody) {
	if len(committed) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range committed {
		if b.pending[p.id] == p {
			delete(b.pending, p.id)
		}
	}
}

// removeResource records that a resource has no bodies once what is queued now is committed.
func (b *bodyIndex) removeResource(resource string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.resources, resource)
	maps.DeleteFunc(b.pending, func(id bodyKey, _ *pendingBody) bool { return id.resource == resource })
}

// findPending returns the pending body of an object, nil where there is none, and whether its resource has bodies at all.
func (b *bodyIndex) findPending(resource, key string) (pending *pendingBody, has bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending[bodyKey{resource, key}], b.resources[resource]
}

// resourceNames returns the names of all resources that have bodies, in order.
func (b *bodyIndex) resourceNames() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.resources))
}

// logExtent is what part of the log exists, in offsets and in stored bytes counted from the first frame ever written.
type logExtent struct {
	oldest, newest       uint64 // oldest is newest+1 while the log has no change
	startBytes, endBytes uint64 // bytes before the oldest frame, bytes up to and with the newest
}

func (e logExtent) sizeBytes() int64 { return int64(e.endBytes - e.startBytes) }

type frameReader struct{ storeReader }

func (r frameReader) loadExtent() (logExtent, error) {
	ext := logExtent{oldest: 1}
	it, err := r.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return ext, err
	}
	defer it.Close()
	if !it.First() {
		if err := it.Error(); err != nil {
			return ext, err
		}
		value, err := r.getValue(codec.KeyEmptied)
		if err != nil {
			return ext, err
		}
		newest, err := codec.DecodeNumber(value) // offsets continue after those that a seed dropped
		return logExtent{oldest: newest + 1, newest: newest}, err
	}
	oldest, h, err := frameHeaderAt(it)
	if err != nil {
		return ext, err
	}
	ext.oldest, ext.startBytes = oldest, h.Before
	it.Last()
	newest, h, err := frameHeaderAt(it)
	if err != nil {
		return ext, err
	}
	ext.newest, ext.endBytes = newest+h.Count-1, h.Before+uint64(len(it.Key())+len(it.Value()))
	if ext.endBytes < ext.startBytes || ext.newest < ext.oldest {
		return ext, fmt.Errorf("%w: frames %d to %d do not follow each other", form.ErrMalformed, oldest, newest)
	}
	return ext, nil
}

// readFrameAfter reads the change after+1 and what follows it in its frame. If that change is older than the oldest one, it
// reads the first frame. oldest is called once the frame is chosen: a trim may have deleted frames meanwhile. decode opens
// the frame.
func (r frameReader) readFrameAfter(
	after uint64, oldest func() uint64, decode func(stored []byte) ([]event.Change, error),
) ([]event.Record, error) {
	it, err := r.newPrefixIter([]byte{codec.PrefixFrame})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	if !it.SeekLT(codec.KeyFrame(after + 2)) {
		if err := it.Error(); err != nil { // First would forget it
			return nil, err
		}
		it.First()
	}
	first, h, err := frameHeaderAt(it)
	if err == nil && first+h.Count-1 <= after {
		it.Next()
		first, _, err = frameHeaderAt(it)
	}
	if err == nil && first > after+1 && after+1 >= oldest() {
		err = fmt.Errorf("%w: changes %d to %d are missing", form.ErrMalformed, after+1, first-1) // I5
	}
	if err != nil {
		return nil, err
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	changes, err := decode(value)
	if err != nil {
		return nil, err
	}
	records := make([]event.Record, len(changes))
	for i := range changes {
		records[i] = event.Record{Offset: first + uint64(i), Change: &changes[i], InFrame: true}
	}
	if first <= after {
		records = records[after+1-first:]
	}
	return records, nil
}

// frameHeaderAt reads the header of the frame at the iterator's position.
func frameHeaderAt(it *pebble.Iterator) (first uint64, h codec.FrameHeader, err error) {
	if !it.Valid() {
		if err := it.Error(); err != nil {
			return 0, h, err
		}
		return 0, h, fmt.Errorf("%w: a frame is missing", form.ErrMalformed)
	}
	first, ok := codec.OffsetOfFrame(it.Key())
	if !ok {
		return 0, h, fmt.Errorf("%w: frame key %x", form.ErrMalformed, it.Key())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, h, err
	}
	h, _, err = codec.ReadFrameHeader(value)
	return first, h, err
}
