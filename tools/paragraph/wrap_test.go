package paragraph

import (
	"slices"
	"testing"
)

func TestWrapBreaksBetweenWords(t *testing.T) {
	got := WrapText("a real API server\nand averylongword here", 8)
	if want := []string{"a real", "API", "server", "and", "averylongword", "here"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
