package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// MaxNamed bounds the existing objects of a scope that a repair names; of more it emits all there are.
const MaxNamed = 2000

// Differing is what has to be emitted again of a scope.
type Differing struct {
	Scope    selection.Scope
	Topic    string   // of the verified target
	Existing []string // objects that the cluster has: "namespace/name", or "name"; nil if there are more than MaxNamed
	Whole    bool     // Existing has not all of them
	Absent   []string // objects that the cluster does not have
	Reason   string   // why emitting again is no remedy, and what is; "" if it is one
}

// Differing returns what has to be emitted again. A scope that was not verified has nothing.
func (r *Result) Differing() []Differing { return r.differing }

// newDiffering divides the objects with differences by their existence.
func newDiffering(s *scope) Differing {
	r := s.result
	d := Differing{Scope: s.Scope, Topic: s.Topic, Whole: r.Missing+r.Stale+r.Different > MaxNamed}
	if r.WatermarkDiffers {
		d.Reason = "the exporter itself knows other objects than the API server has, and would emit those; stop it, move its journal " +
			"aside, and with a replicated state run exporter state reset: then it lists the resource again"
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.keys), compareKeys) {
		name := key.Name
		if key.Namespace != "" {
			name = key.Namespace + "/" + name
		}
		if s.listed[key].exists() {
			d.Existing = append(d.Existing, name)
		} else {
			d.Absent = append(d.Absent, name)
		}
	}
	if d.Whole = d.Whole || len(d.Existing) > MaxNamed; d.Whole {
		d.Existing = nil
	}
	r.keys = nil
	return d
}

func compareKeys(a, b consumer.Key) int {
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
}

// Repair is what was done about the differences of a result.
type Repair struct {
	Resources []ScopeRepair `json:"resources"`
	Reason    string        `json:"reason,omitempty"` // why it is not complete, with the remedy
	After     *Result       `json:"after,omitempty"`  // of the verification behind it; nil if nothing was emitted
}

// HasSignals reports whether anything was emitted again.
func (r *Repair) HasSignals() bool {
	return slices.ContainsFunc(r.Resources, func(s ScopeRepair) bool { return len(s.Signals) > 0 })
}

// ScopeRepair is what was emitted again of one resource, or of one namespace of it.
type ScopeRepair struct {
	Resource  string   `json:"resource"`
	Namespace string   `json:"namespace,omitempty"`
	Existing  int      `json:"existing"`         // objects with differences that the cluster has; with whole, all that it has
	Absent    int      `json:"absent"`           // those that it does not have, of which deletes were emitted
	Whole     bool     `json:"whole"`            // every object was emitted again, because too many had differences
	Signals   []string `json:"signals"`          // IDs of those that are done
	Reason    string   `json:"reason,omitempty"` // what was not repaired, with the remedy
}

// appendText appends what was done for people.
func (r *Repair) appendText(b *strings.Builder) {
	for _, s := range r.Resources {
		s.appendText(b)
	}
	if r.Reason != "" {
		fmt.Fprintf(b, "the repair is not complete: %s\n", r.Reason)
	}
}

func (s ScopeRepair) appendText(b *strings.Builder) {
	fmt.Fprintf(b, "repair of %s", s.Resource)
	if s.Namespace != "" {
		fmt.Fprintf(b, " in %s", s.Namespace)
	}
	fmt.Fprintf(b, ": %d objects emitted again, %d deletes", s.Existing, s.Absent)
	switch n := len(s.Signals); {
	case n > maxShownSignals:
		fmt.Fprintf(b, ", by %d signals from %s to %s", n, s.Signals[0], s.Signals[n-1])
	case n > 0:
		fmt.Fprintf(b, ", by signal %s", strings.Join(s.Signals, ", "))
	}
	b.WriteByte('\n')
	if s.Reason != "" {
		fmt.Fprintf(b, "  %s\n", s.Reason)
	}
}

// maxShownSignals bounds the IDs in the text.
const maxShownSignals = 3
