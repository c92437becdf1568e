package event

// EmittedRecord identifies a record that a destination holds. Two that are equal are copies of one record.
type EmittedRecord struct {
	ID              string // of the change, see [Change.ID]
	Type            Type
	Resource        Resource // only its Group and its Resource: not all formats tell more
	Key             string   // of the object in its resource, as [Known] has it; "" for a control record
	UID             string   // "" for a control record
	ResourceVersion string   // likewise
}

// EmittedRecord returns what identifies the record of c at a destination.
func (c *Change) EmittedRecord() EmittedRecord {
	e := EmittedRecord{ID: c.ID(), Type: c.Type, Resource: Resource{Group: c.Resource.Group, Resource: c.Resource.Resource}}
	if c.Type.IsControl() {
		return e
	}
	e.Key, e.UID, e.ResourceVersion = c.Name, c.UID, c.ResourceVersion
	if c.Namespace != "" {
		e.Key = c.Namespace + "/" + c.Name
	}
	return e
}
