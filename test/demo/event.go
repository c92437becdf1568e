package main

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// event is what a consumer needs of docs/events.md to follow objects.
type event struct {
	ID, Type        string
	Group, Resource string
	Namespace, Name string
	UID             string
	ResourceVersion string
	Coalesced       bool
	Actor           struct{ Manager string }
	Gap             struct{ From, To, Reason string }
	Before, After   map[string]any

	// position orders the events of one object: it is ResourceVersion, which is a number within one resource.
	position uint64
}

// The types of events that mean something to the demo, beside being shown.
const (
	deleted = "deleted"
	gap     = "gap"
)

func parseEvent(payload []byte) (*event, error) {
	e := new(event)
	if err := json.Unmarshal(payload, e); err != nil {
		return nil, fmt.Errorf("what arrived is no event: %w: %.200s", err, payload)
	}
	if e.framesSnapshot() {
		return e, nil
	}
	var err error
	if e.position, err = strconv.ParseUint(e.ResourceVersion, 10, 64); err != nil {
		return nil, fmt.Errorf("event %s: resourceVersion: %w", e.ID, err)
	}
	return e, nil
}

// framesSnapshot reports whether the event begins or ends the snapshot of a resource, and so is of no object.
func (e *event) framesSnapshot() bool { return e.Type == "snapshot.begin" || e.Type == "snapshot.end" }

func (e *event) revision() revision {
	if e.Type == deleted {
		return revision{e.UID, ended}
	}
	return revision{e.UID, e.ResourceVersion}
}

// resource writes the resource as kubectl does.
func (e *event) resource() string {
	switch {
	case e.Group == "":
		return e.Resource
	case e.Resource == "customresourcedefinitions":
		return "crd" // kubectl's own short name; the full one would fill half a line
	}
	return e.Resource + "." + e.Group
}

func (e *event) object() string {
	if e.Namespace == "" {
		return e.Name
	}
	return e.Namespace + "/" + e.Name
}

// author is the writer of the change. For a deleted object Kubernetes has only the last writer, not the author of the
// deletion.
func (e *event) author() string {
	if e.Type == deleted || e.Actor.Manager == "" {
		return "-"
	}
	return e.Actor.Manager
}
