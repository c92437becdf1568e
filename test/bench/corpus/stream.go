package corpus

// The streams of made-up values: what an object's values are drawn for.
const (
	streamUID uint64 = iota + 1
	streamName
	streamObject  // values that stay for the life of an object
	streamVersion // values of one state of it
	streamVariant // values shared by the objects of one template
)

// stream is a splitmix64 generator: one step per value and no state to share, so that any value can be made up alone.
type stream uint64

func newStream(seed, purpose, index uint64) stream {
	s := stream(seed*0x9e3779b97f4a7c15 ^ purpose<<56 ^ index)
	s.next()
	return s
}

func (s *stream) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a value in [0, n).
func (s *stream) below(n int) int { return int(s.next() % uint64(n)) }

// appendHex appends n hexadecimal digits.
func (s *stream) appendHex(b []byte, n int) []byte { return s.appendOf(b, "0123456789abcdef", n) }

// appendOf appends n characters of an alphabet.
func (s *stream) appendOf(b []byte, alphabet string, n int) []byte {
	for range n {
		b = append(b, alphabet[s.below(len(alphabet))])
	}
	return b
}

func (s *stream) appendUID(b []byte) []byte {
	b = append(s.appendHex(b, 8), '-')
	b = append(s.appendHex(b, 4), '-', '4')
	b = append(s.appendHex(b, 3), '-', 'a')
	b = append(s.appendHex(b, 3), '-')
	return s.appendHex(b, 12)
}
