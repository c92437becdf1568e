package rawjson

// Members walks the members of one JSON object. After Next the value begins at I, and whoever takes it moves I behind
// it. A negative I is an error and ends the walk; after the last member I is behind the closing brace.
type Members struct {
	I     int
	Key   []byte // without quotes and escapes; aliases the bytes where there are none
	Start int    // of the member: its opening quote
	Comma int    // before the member; -1 for the first

	b     []byte
	first bool
}

// EnterObject begins a walk of the object whose opening brace is at i.
func EnterObject(b []byte, i int) Members {
	if i < 0 || i >= len(b) || b[i] != '{' {
		return Members{b: b, I: FailAt(max(i, 0))}
	}
	return Members{b: b, I: i + 1, first: true, Comma: -1}
}

// Next goes to the next member, if there is one.
func (m *Members) Next() bool {
	if m.I < 0 {
		return false
	}
	b := m.b
	i, comma, more := nextItem(b, m.I, m.first, '}')
	if !more {
		m.I = i
		return false
	}
	m.first, m.Comma = false, comma
	if i >= len(b) || b[i] != '"' {
		m.I = FailAt(i)
		return false
	}
	end := SkipString(b, i)
	if end < 0 {
		m.I = end
		return false
	}
	m.Start, m.Key = i, Unquote(b[i:end])
	if i = SkipSpace(b, end); i >= len(b) || b[i] != ':' {
		m.I = FailAt(i)
		return false
	}
	m.I = SkipSpace(b, i+1)
	return true
}

// Elements walks the elements of one JSON array as [Members] does the members of an object.
type Elements struct {
	I     int
	Start int // of the element
	Comma int // before the element; -1 for the first

	b     []byte
	first bool
}

// EnterArray begins a walk of the array whose opening bracket is at i; that it is one is for the caller to know.
func EnterArray(b []byte, i int) Elements {
	return Elements{b: b, I: i + 1, first: true, Comma: -1}
}

// Next goes to the next element, if there is one.
func (e *Elements) Next() bool {
	if e.I < 0 {
		return false
	}
	i, comma, more := nextItem(e.b, e.I, e.first, ']')
	if more {
		e.first, e.Comma, e.Start = false, comma, i
	}
	e.I = i
	return more
}

// nextItem goes from behind a bracket or a value to where the next member or element begins, and says which comma it passed, -1
// for none. When there is no more, i is behind the closing bracket, or negative.
func nextItem(b []byte, from int, first bool, closing byte) (i, comma int, more bool) {
	i = SkipSpace(b, from)
	switch {
	case i < len(b) && b[i] == closing:
		return i + 1, -1, false
	case first:
		return i, -1, true
	case i < len(b) && b[i] == ',':
		return SkipSpace(b, i+1), i, true
	}
	return FailAt(i), -1, false
}
