package event

// Emitted identifies a record that a destination holds. Two that are equal are copies of one record.
type Emitted struct {
	ID              string // of the change, see [Change.ID]
	Type            Type
	Resource        Resource // only its Group and its Resource: not all formats tell more
	Key             string   // of the object in its resource, as [Known] has it; "" for a control record
	UID             string   // "" for a control record
	ResourceVersion string   // likewise
}
