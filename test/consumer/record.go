package consumer

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Record is a native object (docs/events.md) as far as a table needs it.
type Record struct {
	ID, Type, Cluster        string
	Group, Version, Resource string
	Namespace, Name          string
	UID, ResourceVersion     string
	Coalesced                bool
	FinalStateUnknown        bool
	Snapshot                 *Snapshot
	Gap                      *Gap
	After                    json.RawMessage
}

// Snapshot is the member of that name. All but ID are of snapshot.end alone.
type Snapshot struct {
	ID, Position, Digest string
	Count                int
}

// Gap is the member of that name: between two positions history was lost.
type Gap struct{ From, To, Reason string }

// Parse reads one native object.
func Parse(value []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(value, &r); err != nil {
		return r, fmt.Errorf("not a native object: %w: %.100s", err, value)
	}
	if r.ID == "" || r.Type == "" {
		return r, fmt.Errorf("not a native object: no id or no type: %.100s", value)
	}
	framed := r.Type == "snapshot.begin" || r.Type == "snapshot.end"
	if framed && r.Snapshot == nil || r.Type == "gap" && r.Gap == nil {
		return r, fmt.Errorf("record %s does not say what its type %s promises: %.100s", r.ID, r.Type, value)
	}
	return r, nil
}

// Resource names a resource of a cluster, whatever version it is served in.
type Resource struct{ Cluster, Group, Resource string }

// Key names an object: the same name is the same key, also in another life.
type Key struct{ Namespace, Name string }

func (r Record) resource() Resource { return Resource{r.Cluster, r.Group, r.Resource} }

// compare orders two resourceVersions of one resource, which are growing integers. Those of an API that does not keep to
// that have no order: then the later record is the newer one.
func compare(a, b string) int {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	switch {
	case errA != nil || errB != nil || x == y:
		return 0
	case x < y:
		return -1
	}
	return 1
}
