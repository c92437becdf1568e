package event

// Evidence is external input that is kept until the attribution that needs it is resolved. Only the component that stored it
// interprets the value.
type Evidence struct {
	Number uint64 // assigned by the component that stored it
	Value  []byte
}
