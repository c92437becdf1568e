package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSinksThatReceiveNothingAreReported has routes that leave nothing for a sink, in every form, and others that look alike
// and leave something. It is a warning, or a problem if no sink is left.
func TestSinksThatReceiveNothingAreReported(t *testing.T) {
	const pods, both = "[{select: [pods]}]", "[{select: [pods]}, {select: [nodes]}]"
	for routes, c := range map[string]struct {
		rules string
		unfed string // the sinks that receive nothing
	}{
		`[{select: ["*"], drop: true}]`:                                      {pods, "a b"},
		`[{select: [pods], drop: true}]`:                                     {pods, "a b"},
		`[{select: [pods], drop: true}, {select: [nodes], drop: true}]`:      {both, "a b"},
		`[{select: [pods], drop: true}]` + " ":                               {both, ""},
		`[{select: [pods], drop: true}, {select: [nodes], to: [{sink: a}]}]`: {both, "b"},
		`[{select: [pods], types: [added, deleted, snapshot, sync, attributed], drop: true}, {select: [pods], types: [updated], drop: true}]`: {pods, "a b"},
		`[{select: [pods], types: [added, deleted], drop: true}]`:                                                                             {pods, ""},
		`[{select: [pods], classes: [status], drop: true}]`:                                                                                   {pods, ""},
		`[{select: [pods], namespaces: {include: ["*"]}, drop: true}]`:                                                                        {pods, "a b"},
		`[{select: [pods], namespaces: {include: [x]}, drop: true}]`:                                                                          {pods, ""},
		`[{select: [pods], namespaces: {include: [x]}, drop: true}]` + " ":                                                                    {"[{select: [pods], namespaces: {include: [x]}}]", "a b"},
		`[{select: [pods], namespaces: {include: ["*"], exclude: [x]}, drop: true}]`:                                                          {pods, ""},
		`[{select: [pods], filter: change.name == "x", to: [{sink: a}]}, {select: ["*"], drop: true}]`:                                        {pods, "b"},
		`[{select: ["*"], exclude: [nodes], drop: true}]`:                                                                                     {both, ""},
		`[{select: ["*.example.com"], drop: true}]`:                                                                                           {`[{select: ["*.example.com"]}]`, "a b"},
		`[{select: [widgets.example.com], drop: true}]`:                                                                                       {`[{select: ["*.example.com"]}]`, ""},
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		text := "resources: " + c.rules + "\nsinks: [{name: a, stdout: {}}, {name: b, stdout: {path: " + filepath.Join(filepath.Dir(path), "b") + "}}]\nroutes: " + routes + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load(path)
		if c.unfed == "a b" {
			if err == nil || !strings.Contains(err.Error(), "routes: leave nothing for any sink") {
				t.Errorf("%sis accepted, though nothing is ever sent (%v)", text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s%v", text, err)
			continue
		}
		var unfed []string
		for _, w := range cfg.Warnings {
			if strings.Contains(w.Message, "receives nothing") {
				unfed = append(unfed, map[string]string{"sinks[0]": "a", "sinks[1]": "b"}[w.Path])
			}
		}
		if got := strings.Join(unfed, " "); got != c.unfed {
			t.Errorf("%s: nothing reaches %q, expected %q", text, got, c.unfed)
		}
	}
}
