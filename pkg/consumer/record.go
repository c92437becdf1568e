package consumer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Record is a native object (docs/events.md) as far as a table needs it. After belongs to whoever made the record; a table
// keeps it and does not change it.
type Record struct {
	ID                string          `json:"id"`
	Type              string          `json:"type"`
	Cluster           string          `json:"cluster"`
	Group             string          `json:"group"`
	Version           string          `json:"version"`
	Resource          string          `json:"resource"`
	Namespace         string          `json:"namespace"`
	Name              string          `json:"name"`
	UID               string          `json:"uid"`
	ResourceVersion   string          `json:"resourceVersion"`
	ObservedAt        time.Time       `json:"observedAt"`
	Coalesced         bool            `json:"coalesced"`
	FinalStateUnknown bool            `json:"finalStateUnknown"`
	Left              bool            `json:"left"`
	Snapshot          *Snapshot       `json:"snapshot"`
	Gap               *Gap            `json:"gap"`
	After             json.RawMessage `json:"after"`
}

// Snapshot is the member of that name. All but ID are of snapshot.end alone.
type Snapshot struct {
	ID       string `json:"id"`
	Position string `json:"position"`
	Count    int    `json:"count"`
	Digest   string `json:"digest"`
}

// Gap is the member of that name: between two positions history was lost.
type Gap struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`
}

// Parse reads one native object. Members that it does not know are ignored, and so are types, by [Table.Apply]. Its error
// quotes nothing of an object.
func Parse(value []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(value, &r); err != nil {
		return r, fmt.Errorf("not a native object: %w", err)
	}
	if r.ID == "" || r.Type == "" {
		return r, fmt.Errorf("not a native object: no id or no type")
	}
	framed := r.Type == "snapshot.begin" || r.Type == "snapshot.end"
	if framed && r.Snapshot == nil || r.Type == "gap" && r.Gap == nil {
		return r, fmt.Errorf("record %s does not say what its type %s promises", r.ID, r.Type)
	}
	return r, nil
}

// Resource names a resource of a cluster, whatever version it is served in.
type Resource struct{ Cluster, Group, Resource string }

// Key names an object: the same name is the same key, also in another life.
type Key struct{ Namespace, Name string }

func (r Record) resourceName() Resource { return Resource{r.Cluster, r.Group, r.Resource} }

// compareVersions orders two resourceVersions of one resource, which are growing integers. Those of an API that does not keep to
// that have no order: then the later record is the newer one.
func compareVersions(a, b string) int {
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
