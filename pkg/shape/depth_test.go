package shape

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// nest returns a value within depth objects or arrays.
func nest(depth int, value string) string {
	if depth%2 == 0 {
		return strings.Repeat(`{"a":`, depth) + value + strings.Repeat("}", depth)
	}
	return strings.Repeat(`[`, depth) + value + strings.Repeat("]", depth)
}

// API servers accept values nested up to some 9,990 levels deep.
func TestDeeplyNestedObjectsAreShaped(t *testing.T) {
	for name, p := range map[string]Policy{
		"redactPaths":   {RedactPaths: []string{"spec.secret", "spec.list.token"}},
		"drop":          {Redact: Drop, RedactPaths: []string{"spec.secret", "spec.list.token"}},
		"hmac":          {Redact: HMAC, RedactPaths: []string{"spec.secret", "spec.list.token"}},
		"fields.keep":   {Fields: Fields{Keep: []string{"spec.shown", "spec.list.shown"}}},
		"fields.drop":   {Fields: Fields{Drop: []string{"spec.secret", "spec.list.token"}}},
		"filter":        {RedactPaths: []string{"spec.secret", "spec.list.token"}, Filter: `has(object.spec)`},
		"onlyIfChanged": {RedactPaths: []string{"spec.secret", "spec.list.token"}, OnlyIfChanged: []string{"spec.shown"}},
		"ignoreChanges": {RedactPaths: []string{"spec.secret", "spec.list.token"}, IgnoreChanges: []string{"status"}},
		"values":        {RedactPaths: []string{"spec.secret", "spec.list.token"}, Changed: ChangedValues, Before: beforeFull},
	} {
		for _, depth := range []int{499, 500, 9000, 9989} {
			s := newScene(t, p)
			object := func(shown string) string {
				return `{"spec":{"secret":` + nest(depth, `"hunter1"`) + `,"list":` + nest(depth-1+depth%2, `{"token":"hunter2","shown":true}`) +
					`,"shown":` + nest(depth, shown) + `}}`
			}
			s.shapeChanges(updatedTo(deployment, object(`"v1"`)))
			emitted := s.shapeChanges(updatedTo(deployment, object(`"v2"`)))
			if len(emitted) != 1 || emitted[0].Withheld != "" || !strings.Contains(string(emitted[0].After), `"v2"`) {
				t.Errorf("%s, %d levels: %d changes emitted: %.200v", name, depth, len(emitted), emitted)
				continue
			}
			for _, body := range [][]byte{emitted[0].Before, emitted[0].After, emitted[0].Changed} {
				if strings.Contains(string(body), "hunter") {
					t.Errorf("%s, %d levels: a secret value is shown", name, depth)
				}
				if len(body) > 0 && !json.Valid(body) {
					t.Errorf("%s, %d levels: a body is not JSON", name, depth)
				}
			}
		}
	}
}

func TestAnObjectNestedTooDeepIsWithheldWithThatReason(t *testing.T) {
	s := newScene(t, Policy{RedactPaths: []string{"spec.secret"}})
	emitted := s.shapeChanges(updatedTo(deployment, `{"spec":`+nest(2*rawjson.MaxDepth, "1")+`}`))
	if len(emitted) != 1 || !strings.Contains(emitted[0].Withheld, "nested deeper than 10000 levels at byte ") {
		t.Errorf("emitted: %.300v", emitted)
	}
}
