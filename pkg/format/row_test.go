package format

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestTruncatedRowListsOmittedMembers(t *testing.T) {
	for object, want := range map[string]string{
		`{"kind":"X"}`:        `{"kubecdcOmitted":["spec","status"],"kind":"X"}`,
		" {\n\"kind\":\"X\"}": `{"kubecdcOmitted":["spec","status"],"kind":"X"}`,
		`{ }`:                 `{"kubecdcOmitted":["spec","status"]}`,
	} {
		c := &event.Change{Type: event.Updated, After: []byte(object), Omitted: []string{"before", "spec", "changed", "status"}}
		if got := string(Upsert.AppendValue(nil, c)); got != want {
			t.Errorf("upsert: %s became %s, want %s", object, got, want)
		}
		if got := string(Debezium.AppendValue(nil, c)); !json.Valid([]byte(got)) || !strings.Contains(got, `"after":`+want+`,`) {
			t.Errorf("debezium: %s became %s", object, got)
		}
		c.Type, c.Before, c.After = event.Deleted, c.After, nil
		if got := string(Debezium.AppendValue(nil, c)); !strings.Contains(got, `"before":`+want+`,`) {
			t.Errorf("debezium: a delete of %s became %s", object, got)
		}
	}
	whole := &event.Change{Type: event.Updated, After: []byte(`{"kind":"X"}`), Omitted: []string{"before", "changed"}}
	if got := string(Upsert.AppendValue(nil, whole)); got != `{"kind":"X"}` {
		t.Errorf("a complete row became %s", got)
	}
}
