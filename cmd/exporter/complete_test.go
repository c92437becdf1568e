package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTheShellIsOfferedWhatThereIs(t *testing.T) {
	for args, want := range map[string][]string{
		"explain --config c.yaml -o ": {"text", "json"},
		"explain --config ":           {"yaml", "yml"}, // endings of files
	} {
		_, out, _ := try(t, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if got := lines[:len(lines)-1]; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
