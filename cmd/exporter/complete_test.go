package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTheShellIsOfferedWhatThereIs(t *testing.T) {
	file := write(t, "c.yaml", `
resources: [{select: [pods]}]
sinks: [{name: main, kafka: {brokers: ["127.0.0.1:1"], topic: t}}, {name: out, stdout: {}}]
`)
	kubeconfig := write(t, "kubeconfig", `{"kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],`+
		`"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u"}]}`)
	for args, want := range map[string][]string{
		"deadletters list --config FILE --sink ":        {"main", "out"},
		"explain --config FILE -o ":                     {"text", "json"},
		"deadletters list --config none.yaml --sink ":   nil,
		"tap --kubeconfig " + kubeconfig + " --select ": nil,             // no server answers
		"explain --config ":                             {"yaml", "yml"}, // endings of files
	} {
		_, out, _ := try(t, append([]string{"__complete"}, strings.Split(strings.ReplaceAll(args, "FILE", file), " ")...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if got := lines[:len(lines)-1]; !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
