package rawjson

import "bytes"

// Names detects duplicate names in one object, because their values are ambiguous. The zero value is ready to use.
type Names struct {
	few  [16][]byte
	n    int
	many map[string]bool
}

// IsDuplicate reports whether the name was passed before, and records it. The name is retained and must not be modified.
func (s *Names) IsDuplicate(name []byte) bool {
	if s.many != nil {
		if s.many[string(name)] {
			return true
		}
		s.many[string(name)] = true
		return false
	}
	for _, known := range s.few[:s.n] {
		if bytes.Equal(known, name) {
			return true
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return false
	}
	s.many = map[string]bool{string(name): true}
	for _, known := range s.few {
		s.many[string(known)] = true
	}
	return false
}
