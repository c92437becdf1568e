package event

// Evidence is something that was taken from outside and is needed until what it speaks of is concluded. Its value is for who
// made it only.
type Evidence struct {
	Number uint64 // its own
	Value  []byte
}
