package oracle

import (
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

// Resource is a selected resource and where etcd keeps it.
type Resource struct {
	Group, Resource string
	Prefix          string // "/registry/configmaps/", then NAMESPACE/NAME
	Namespace       string // the only one that is asked for; "" asks for all
}

// Op is what a revision did to its object.
type Op int

// The operations.
const (
	Created Op = iota
	Updated
	Deleted
)

func (o Op) String() string { return [...]string{"created", "updated", "deleted"}[o] }

// Revision is one change of one object in etcd's history.
type Revision struct {
	Object   bus.Object
	Revision int64 // etcd's, which is the resourceVersion
	Op       Op
	Value    []byte // as etcd has it, where it was read; JSON for custom resources
}

func (r Revision) String() string { return fmt.Sprintf("%v %v at %d", r.Object, r.Op, r.Revision) }

// History is what happened to the selected resources.
type History struct {
	Start, End int64
	Existing   []Revision // the newest revision of every object that existed at Start
	Revisions  []Revision // after Start, up to and with End, in order
}

// Only is the part of the history that a sink is to hear of.
func (h *History) Only(selectedFor func(Revision) bool) *History {
	part := &History{Start: h.Start, End: h.End}
	for _, r := range h.Existing {
		if selectedFor(r) {
			part.Existing = append(part.Existing, r)
		}
	}
	for _, r := range h.Revisions {
		if selectedFor(r) {
			part.Revisions = append(part.Revisions, r)
		}
	}
	return part
}

// prefix is what the keys begin with under which etcd keeps what is asked for.
func (r Resource) prefix() string {
	if r.Namespace == "" {
		return r.Prefix
	}
	return r.Prefix + r.Namespace + "/"
}

// object is the object that a key below the prefix belongs to.
func (r Resource) object(key []byte) bus.Object {
	rest := strings.TrimPrefix(string(key), r.Prefix)
	namespace, name, namespaced := strings.Cut(rest, "/")
	if !namespaced {
		namespace, name = "", rest
	}
	return bus.Object{Group: r.Group, Resource: r.Resource, Namespace: namespace, Name: name}
}
