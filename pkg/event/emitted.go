package event

// EmittedRecord identifies a record in a destination. Equal values are copies of one record.
type EmittedRecord struct {
	ID              string // of the change, see [Change.ID]
	Type            Type
	Resource        Resource // only Group and Resource: not all formats carry more
	Key             string   // of the object within its resource, as in [Known]; "" for a control record
	UID             string   // "" for a control record
	ResourceVersion string   // "" for a control record
}

// EmittedRecord returns the identity of c's record in a destination.
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
