package shape

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// rotated are objects with a value that a rule redacts, and of which an annotation has a copy that nothing else betrays.
var rotated = map[string]struct {
	resource event.Resource
	policy   Policy
	body     string // with the value, and the annotations
}{
	"a Secret": {
		secret, Policy{SecretMetadata: SecretMetadata{Annotations: []string{"example.com/state", "example.com/other"}}},
		`{"kind":"Secret","metadata":{"name":"a","annotations":%[2]s},"data":{"p":"%[1]s"}}`,
	},
	"a ConfigMap": {
		event.Resource{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"}, Policy{RedactPaths: []string{"data.password"}},
		`{"kind":"ConfigMap","metadata":{"name":"a","annotations":%[2]s},"data":{"password":"%[1]s"}}`,
	},
}

const copyOfOld, copyOfNothing = `{"example.com/state":"{\"was\":\"hunter-old\"}"}`, `{"example.com/state":"{\"was\":\"shown\"}"}`

// rotation is an object whose value was rotated while an annotation still has the old one.
type rotation struct {
	*scene
	policy   Policy
	resource event.Resource
	body     string
	out      *strings.Builder // everything that was emitted or stored
}

func eachRotation(t *testing.T, test func(t *testing.T, r *rotation)) {
	for name, c := range rotated {
		for _, mode := range []string{Mask, HMAC, Drop} {
			for _, changed := range []string{changedPaths, ChangedValues} {
				t.Run(fmt.Sprint(name, " ", mode, " ", changed), func(t *testing.T) {
					c.policy.Redact, c.policy.Before, c.policy.Changed = mode, "full", changed
					r := &rotation{newScene(t, c.policy), c.policy, c.resource, c.body, &strings.Builder{}}
					test(t, r)
					if strings.Contains(r.out.String(), "hunter") {
						t.Errorf("a value is seen: %s", r.out)
					}
				})
			}
		}
	}
}

// update emits an update to a value and annotations, and returns the state that was emitted.
func (r *rotation) update(value, annotations string) string {
	r.t.Helper()
	return r.emit(updatedTo(r.resource, fmt.Sprintf(r.body, value, annotations)))
}

func (r *rotation) emit(c *event.Change) string {
	r.t.Helper()
	for _, c := range r.shapeChanges(c) {
		fmt.Fprintf(r.out, "%s %s %s\n", c.Before, c.After, c.Changed)
	}
	for key, b := range r.bodies {
		fmt.Fprintf(r.out, "%s %s\n", key, b.Raw)
	}
	for key, k := range r.known {
		fmt.Fprintf(r.out, "%s %s\n", key, k.Summary)
	}
	return string(c.After)
}

// TestARotatedValueStaysHiddenInItsCopy until the annotation itself changes, through restarts with the key of before,
// without one and with another, edits of the rules, a delete, and in a copy under another name.
func TestARotatedValueStaysHiddenInItsCopy(t *testing.T) {
	eachRotation(t, func(t *testing.T, r *rotation) {
		r.update("hunter-old", copyOfOld)
		for i, key := range []string{oneKey, "", "", anotherKey, anotherKey} {
			if r.restartWith(r.policy, key); key == "" && r.policy.Redact == HMAC {
				continue // hashes need a key
			}
			r.update(fmt.Sprintf("hunter-%d", i), copyOfOld)
			r.update(fmt.Sprintf("hunter-again-%d", i), copyOfOld)
		}
		edited := r.policy
		edited.RedactPaths = append([]string{"spec.added"}, edited.RedactPaths...)
		r.restartWith(edited, oneKey)
		r.update("hunter-edited", copyOfOld)
		r.update("hunter-renamed", strings.Replace(copyOfOld, "state", "other", 1))
		deleted := updatedTo(r.resource, "")
		deleted.Type, deleted.After, deleted.Before = event.Deleted, nil, []byte(fmt.Sprintf(r.body, "hunter-last", copyOfOld))
		r.emit(deleted)
	})
}

// TestAChangedAnnotationIsJudgedAnew: it is shown as soon as it holds no value, and redacted where it holds the old one
// again.
func TestAChangedAnnotationIsJudgedAnew(t *testing.T) {
	eachRotation(t, func(t *testing.T, r *rotation) {
		r.update("hunter-old", copyOfOld)
		r.update("hunter-new", copyOfOld)
		if got := r.update("hunter-new", copyOfNothing); !strings.Contains(got, "shown") {
			t.Errorf("the changed annotation is redacted: %s", got)
		}
		r.restartWith(r.policy, oneKey)
		if got := r.update("hunter-new", copyOfNothing); !strings.Contains(got, "shown") {
			t.Errorf("the changed annotation is redacted after a restart: %s", got)
		}
		r.update("hunter-new", copyOfOld)
	})
}

// TestACopyMadeBeforeItsValueIsHiddenInTheStateBefore, so that the change that reveals it does not carry it.
func TestACopyMadeBeforeItsValueIsHiddenInTheStateBefore(t *testing.T) {
	eachRotation(t, func(t *testing.T, r *rotation) {
		r.update("x", copyOfOld)
		r.out.Reset() // the copy was of nothing, until now
		r.update("hunter-old", copyOfOld)
	})
}

// TestAfterAFailoverNoCopyIsShownUntilItChanges: the replicated state has no verdicts, and the next exporter sees no value
// of before.
func TestAfterAFailoverNoCopyIsShownUntilItChanges(t *testing.T) {
	eachRotation(t, func(t *testing.T, r *rotation) {
		r.update("hunter-old", copyOfOld)
		r.known = map[string]event.Known{"n/a": {Key: "n/a", UID: "u", ResourceVersion: "2"}}
		r.bodies = nil
		r.restartWith(r.policy, oneKey)
		r.restartWith(r.policy, oneKey) // nothing was seen of it
		fmt.Fprintf(r.out, "%+v\n", r.shapeBody(r.resource, fmt.Sprintf(r.body, "hunter-new", copyOfOld)))
		r.update("hunter-new", copyOfOld)
		r.restartWith(r.policy, oneKey)
		r.update("hunter-newer", copyOfOld)
		if got := r.update("hunter-newer", copyOfNothing); !strings.Contains(got, "shown") {
			t.Errorf("the changed annotation is redacted: %s", got)
		}
	})
}

// TestJournaledCopiesStayHiddenWhenRulesAreEdited: the changes that wait are redacted in order, so that a later one with the
// old value in the annotation alone is known by an earlier one, and so are the changes to come.
func TestJournaledCopiesStayHiddenWhenRulesAreEdited(t *testing.T) {
	eachRotation(t, func(t *testing.T, r *rotation) {
		waiting := updatedTo(r.resource, fmt.Sprintf(r.body, "hunter-new", copyOfOld))
		waiting.Before = fmt.Appendf(nil, r.body, "hunter-old", copyOfOld)
		r.shaper.RedactStoredChange(waiting)
		later := updatedTo(r.resource, fmt.Sprintf(r.body, "hunter-newer", copyOfOld))
		r.shaper.RedactStoredChange(later)
		fmt.Fprintf(r.out, "%s %s %s\n", waiting.Before, waiting.After, later.After)
		r.update("hunter-newest", copyOfOld)
	})
}

// TestVerdictsOfAnObjectAreBounded: the newest are kept.
func TestVerdictsOfAnObjectAreBounded(t *testing.T) {
	eachRotation(t, func(t *testing.T, r *rotation) {
		annotations := func(i int) string { return strings.Replace(copyOfOld, "old", fmt.Sprint(i), 1) }
		for i := range 3 * maxCopyVerdicts {
			r.update(fmt.Sprintf("hunter-%d", i), annotations(i))
		}
		if size := len(r.known["n/a"].Summary); size > 1000 {
			t.Errorf("%d bytes are stored", size)
		}
		r.restartWith(r.policy, oneKey)
		r.update("hunter-last", annotations(3*maxCopyVerdicts-1))
	})
}
