package filter_test

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
)

func TestFactsFilterRejectsObjectReferences(t *testing.T) {
	f, err := filter.NewFactsFilter(`change.type == "deleted" && change.name.startsWith("web")`)
	if err != nil {
		t.Fatal(err)
	}
	for typ, want := range map[event.Type]bool{event.Deleted: true, event.Added: false} {
		if got, err := f.Matches(&event.Change{Type: typ, Name: "web-1"}); err != nil || got != want {
			t.Errorf("%s: %v, %v", typ, got, err)
		}
	}
	for _, expression := range []string{`has(object.spec)`, `oldObject == null`} {
		if _, err := filter.NewFactsFilter(expression); err == nil || !strings.Contains(err.Error(), "bject") {
			t.Errorf("%s: %v", expression, err)
		}
	}
	all, err := filter.NewFactsFilter("")
	if err != nil {
		t.Fatal(err)
	}
	if yes, err := all.Matches(&event.Change{}); !yes || err != nil {
		t.Errorf("without an expression: %v, %v", yes, err)
	}
}
