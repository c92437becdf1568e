package verify

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// meta is the identity inside an object.
type meta struct {
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

type body struct {
	Kind     string `json:"kind"`
	Metadata meta   `json:"metadata"`
}

// native is what is read of the exporter's native format.
type native struct {
	Type            string `json:"type"`
	Resource        string `json:"resource"`
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	Before          *body  `json:"before"`
	After           *body  `json:"after"`
}

var nativeTypes = map[string]corpus.Type{
	"snapshot": corpus.Added, "added": corpus.Added, "updated": corpus.Modified, "deleted": corpus.Deleted,
}

// Native reads a record of the exporter's native JSON format. The record must be valid JSON from end to end, and the body
// must be that of the object and state it names.
func Native(value []byte) (Record, error) {
	var n native
	if err := json.Unmarshal(value, &n); err != nil {
		return Record{}, fmt.Errorf("record of the exporter: %w", err)
	}
	switch n.Type {
	case "gap":
		return Record{Control: true}, nil
	case "snapshot.begin", "snapshot.end":
		return Record{Frame: true}, nil
	}
	t, ok := nativeTypes[n.Type]
	if !ok {
		return Record{}, fmt.Errorf("record of the exporter: type %q", n.Type)
	}
	state := n.After
	if t == corpus.Deleted {
		state = n.Before
	}
	if says := (meta{n.Namespace, n.Name, n.UID, n.ResourceVersion}); state == nil || state.Metadata != says {
		return Record{}, fmt.Errorf("record of the exporter: %s of %+v with the body %+v", n.Type, says, state)
	}
	return newRecord(n.Resource, state.Metadata, t)
}

var baselineTypes = map[string]corpus.Type{
	"added": corpus.Added, "updated": corpus.Modified, "deleted": corpus.Deleted,
}

// Baseline reads a record of the baseline.
func Baseline(value []byte) (Record, error) {
	var b struct {
		Type   string `json:"type"`
		Object body   `json:"object"`
	}
	if err := json.Unmarshal(value, &b); err != nil {
		return Record{}, fmt.Errorf("record of the baseline: %w", err)
	}
	t, ok := baselineTypes[b.Type]
	if !ok {
		return Record{}, fmt.Errorf("record of the baseline: type %q", b.Type)
	}
	for _, r := range corpus.Resources {
		if r.Kind() == b.Object.Kind {
			return newRecord(r.String(), b.Object.Metadata, t)
		}
	}
	return Record{}, fmt.Errorf("record of the baseline: kind %q", b.Object.Kind)
}

func newRecord(resource string, m meta, t corpus.Type) (Record, error) {
	rv, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("record of %s/%s/%s: resourceVersion %q", resource, m.Namespace, m.Name, m.ResourceVersion)
	}
	return Record{Key: resource + "/" + m.Namespace + "/" + m.Name, UID: m.UID, RV: rv, Type: t}, nil
}
