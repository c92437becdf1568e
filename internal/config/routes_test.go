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
		`[{select: [pods], filter: "true", drop: true}]`:                                                                                      {pods, "a b"},
		`[{select: [pods], filter: object.spec.paused || 1 < 2, drop: true}]`:                                                                 {pods, "a b"},
		`[{select: [pods], filter: change.resource == "pods", drop: true}]`:                                                                   {pods, "a b"},
		`[{select: [pods], filter: change.resource == "pods", drop: true}]` + " ":                                                             {both, ""},
		`[{select: [pods], filter: change.type != "sync", drop: true}]`:                                                                       {pods, "a b"},
		`[{select: [pods], filter: change.type != "sync", drop: true}]` + " ":                                                                 {"[{select: [pods], resync: 1h}]", ""},
		`[{select: [pods], types: [added, updated, deleted, snapshot], drop: true}]`:                                                          {pods, "a b"},
		`[{select: [pods], types: [updated], classes: [spec, status, metadata, deleting], drop: true}]`:                                       {pods, ""},
		`[{select: [pods], types: [added], drop: true}]`:                                                                                      {`[{select: [pods], filter: change.type == "added"}]`, "a b"},
		`[{select: [pods], classes: [status], drop: true}]` + " ":                                                                             {`[{select: [pods], filter: change.class == "status"}]`, "a b"},
		`[{select: [pods], filter: change.name == "a" || change.name != "b", drop: true}]`:                                                    {pods, ""},
		`[{select: [pods], types: [added], to: [{sink: b}]}, {select: [pods], filter: "true", to: [{sink: a}]}]`:                              {`[{select: [pods], filter: change.class == "spec"}]`, "b"},
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

// TestRoutesWithConditionsThatExcludeEachOtherAreReported has routes that no change can match, and others that look alike.
func TestRoutesWithConditionsThatExcludeEachOtherAreReported(t *testing.T) {
	for routes, want := range map[string]string{
		`[{select: [pods], types: [added], filter: change.type == "deleted", to: [{sink: a}]}]`:                                                                          "routes[0].filter: is false",
		`[{select: [pods], classes: [spec], filter: change.class == "status", to: [{sink: a}]}]`:                                                                         "routes[0].filter: is false",
		`[{select: [pods], filter: change.resource == "nodes", to: [{sink: a}]}]`:                                                                                        "routes[0].filter: is false",
		`[{select: [pods, nodes], filter: change.resource == "nodes", to: [{sink: a}]}]`:                                                                                 "",
		`[{select: [pods], filter: change.type == "attributed", to: [{sink: a}]}]`:                                                                                       "",
		`[{select: [pods], types: [added], to: [{sink: a}]}, {select: [pods], filter: change.type == "added", drop: true}]`:                                              "routes[1]: is never reached: routes[0] matches",
		`[{select: [pods], types: [added], to: [{sink: a}]}, {select: [pods], filter: change.type != "deleted", drop: true}]`:                                            "",
		`[{select: [pods], filter: "true", to: [{sink: a}]}, {select: [pods], drop: true}]`:                                                                              "routes[1]: is never reached: routes[0] matches",
		`[{select: [pods], types: [added], to: [{sink: a}]}, {select: ["*"], types: [deleted], to: [{sink: a}]}, {select: [pods], types: [added, deleted], drop: true}]`: "routes[2]: is never reached: routes[0] and routes[1] match",
		`[{select: [pods], types: [added], to: [{sink: a}]}, {select: ["*"], types: [deleted], to: [{sink: a}]}, {select: [pods], types: [added, updated], drop: true}]`: "",
	} {
		_, err := loadString(t, "resources: [{select: [pods]}, {select: [nodes]}]\nsinks: [{name: a, stdout: {}}]\nroutes: "+routes+"\n")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", routes, err, want)
		}
	}
}
