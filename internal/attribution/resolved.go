package attribution

import (
	"encoding/binary"
	"errors"
	"slices"
)

// resolvedOffsets are the changes after the cursor that are resolved, although older ones wait: all up to highest, except
// those that wait. They are stored with the cursor. Their evidence is used up, so resolving them again after a restart would
// find another author, or none.
type resolvedOffsets struct {
	highest uint64
	waiting []uint64 // in order
}

// contains reports whether the change at an offset is resolved.
func (r *resolvedOffsets) contains(offset uint64) bool {
	if offset > r.highest {
		return false
	}
	_, waits := slices.BinarySearch(r.waiting, offset)
	return !waits
}

// after returns what is resolved once all changes up to read are, apart from some that wait. Later ones are not read yet.
func (r *resolvedOffsets) after(read uint64, waiting []uint64) resolvedOffsets {
	i, found := slices.BinarySearch(r.waiting, read)
	if found {
		i++
	}
	return resolvedOffsets{highest: max(read, r.highest), waiting: append(waiting, r.waiting[i:]...)}
}

// encodeResolved returns the stored form: highest and the waiting offsets, each as the difference to the one before.
func encodeResolved(r resolvedOffsets) []byte {
	b := binary.AppendUvarint(nil, r.highest)
	before := uint64(0)
	for _, offset := range r.waiting {
		b = binary.AppendUvarint(b, offset-before)
		before = offset
	}
	return b
}

// decodeResolved decodes the stored form. None is stored by a version before this one.
func decodeResolved(b []byte) (r resolvedOffsets, err error) {
	before, first := uint64(0), true
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			return r, errors.New("the resolved changes that are stored with the cursor are damaged")
		}
		if b = b[size:]; first {
			r.highest, first = n, false
			continue
		}
		before += n
		r.waiting = append(r.waiting, before)
	}
	return r, nil
}
