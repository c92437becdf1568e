package rawjson

import "bytes"

// Names notices when a name occurs twice in one object: then there is no telling which value counts.
type Names struct {
	few  [16][]byte
	n    int
	many map[string]bool
}

// IsDuplicate says that the name was there before. It keeps the name, which must not be written to afterwards.
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
