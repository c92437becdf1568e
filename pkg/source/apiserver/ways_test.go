package apiserver

import (
	"errors"
	"testing"
)

// TestWaysThatAreLackingHaveTheirWholeReason, whatever punctuation is in it.
func TestWaysThatAreLackingHaveTheirWholeReason(t *testing.T) {
	var w Ways
	w.Learn(StreamedList, errors.New("no stream, but a page"))
	w.Learn(Pages, nil)
	lacking := "no " + wayNames[StreamedList] + " (" + Reason(errors.New("no stream, but a page")) + ")"
	if got := w.Lacking(); got != lacking {
		t.Errorf("it lacks %q, want %q", got, lacking)
	}
	if got, want := w.String(), lacking+", "+wayNames[Pages]; got != want {
		t.Errorf("it has %q, want %q", got, want)
	}
	if w.Forget(); w.Lacking() != "" || w.String() != "" {
		t.Errorf("%q and %q are not forgotten", w.String(), w.Lacking())
	}
}
