package diff

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// Bounds of what [Values] returns, in bytes of JSON.
const (
	maxValue = 4 << 10  // a value that is longer is left out
	maxList  = 32 << 10 // differences behind are left out, as one of the whole object
)

// Paths returns, as a JSON array, the sorted pointers at which two objects differ; nil if they do not.
func Paths(before, after []byte) []byte {
	var all [][]byte
	compare(before, after, func(pointer, _, _ []byte, _ int) bool {
		all = append(all, appendQuoted(nil, pointer))
		return true
	})
	if all == nil {
		return nil
	}
	slices.SortFunc(all, bytes.Compare)
	return slices.Concat([]byte("["), bytes.Join(all, []byte(",")), []byte("]"))
}

// Values returns, as a JSON array, the differences between two objects: the members path, from and to. An item that was
// added to a list with keys, or removed from it, has its index in that list. The member omitted names the values that are
// left out: those that are too long, and the rest of too long a list, as a difference of the whole object.
func Values(before, after []byte) []byte {
	b := make([]byte, 0, 1<<10)
	compare(before, after, func(pointer, from, to []byte, index int) bool {
		length := len(b)
		if b = appendDifference(b, pointer, from, to, index); len(b) <= maxList {
			return true
		}
		b = append(b[:length], `,{"path":"","omitted":["from","to"]}`...)
		return false
	})
	if len(b) == 0 {
		return []byte("[]")
	}
	b[0] = '['
	return append(b, ']')
}

func appendDifference(b, pointer, from, to []byte, index int) []byte {
	b = appendQuoted(append(b, `,{"path":`...), pointer)
	var omitted []byte
	for _, v := range [...]struct {
		name  string
		value []byte
	}{{`"from"`, from}, {`"to"`, to}} {
		switch {
		case v.value == nil:
		case len(v.value) > maxValue:
			omitted = append(append(omitted, ','), v.name...)
		default:
			b = append(append(append(append(b, ','), v.name...), ':'), v.value...)
		}
	}
	if index != noIndex {
		b = strconv.AppendInt(append(b, `,"index":`...), int64(index), 10)
	}
	if omitted != nil {
		b = append(append(append(b, `,"omitted":[`...), omitted[1:]...), ']')
	}
	return append(b, '}')
}

// appendQuoted appends valid UTF-8 as a JSON string.
func appendQuoted(b, s []byte) []byte {
	if !bytes.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == '"' || r == '\\' }) {
		return append(append(append(b, '"'), s...), '"')
	}
	quoted, err := json.Marshal(string(s))
	if err != nil { // unreachable: every string can be encoded
		return append(b, `""`...)
	}
	return append(b, quoted...)
}
