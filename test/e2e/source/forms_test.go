package source

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/parts/values"
)

// checkForms checks that no record mixes the forms of an object: its versions, and whole objects with their metadata.
func (h *history) checkForms(records []bus.Record) {
	h.t.Helper()
	for o, life := range recordsByObject(records) {
		for i, r := range life {
			if wrong := formError(life[:i], r); wrong != "" {
				h.t.Errorf("%v: %s: %s", o, wrong, r.Payload)
			}
		}
	}
}

// formError describes what is wrong with the states and the list of a record that follows others of its object.
func formError(earlier []bus.Record, r bus.Record) string {
	before, after := decodeState(r.Before), decodeState(r.After)
	switch {
	case r.Type != "updated" || before == nil:
		return listWithoutBefore(earlier, r)
	case before["apiVersion"] != after["apiVersion"]:
		return "before and after are of different versions"
	case (before["spec"] == nil) != (after["spec"] == nil):
		return "only one of before and after has a spec"
	}
	if last := len(earlier) - 1; earlier[last].Type != "deleted" && versionOf(before) != earlier[last].ResourceVersion {
		return "before is not the version of the record before, " + earlier[last].ResourceVersion
	}
	return listError(before, r)
}

// listError describes a list of what changed that does not turn a state into that of the record.
func listError(state map[string]any, r bus.Record) string {
	var c struct{ Changed []any }
	if _ = json.Unmarshal(r.Payload, &c); len(c.Changed) == 0 {
		return ""
	}
	if _, isPath := c.Changed[0].(string); isPath { // changed: paths
		return ""
	}
	if got, err := values.Apply(any(state), c.Changed); err != nil || !reflect.DeepEqual(got, any(decodeState(r.After))) {
		return fmt.Sprintf("changed makes %v of before, %v", got, err)
	}
	return ""
}

// listWithoutBefore describes a list that turns no earlier state into that of the record.
func listWithoutBefore(earlier []bus.Record, r bus.Record) string {
	for _, e := range slices.Backward(earlier) {
		if len(e.After) > 0 {
			return listError(decodeState(e.After), r)
		}
	}
	return ""
}

func decodeState(text json.RawMessage) (state map[string]any) {
	_ = json.Unmarshal(text, &state) // nil without a state
	return state
}

func versionOf(state map[string]any) string {
	metadata, _ := state["metadata"].(map[string]any)
	version, _ := metadata["resourceVersion"].(string)
	return version
}
