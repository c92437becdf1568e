package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

const top = "../.."

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	keys, err := collectKeys(top)
	if err != nil {
		t.Fatal(err)
	}
	for name, render := range files {
		got, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, render(keys)) {
			t.Errorf("%s is not up to date; run: go generate ./internal/config", name)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	keys, err := collectKeys(top)
	if err != nil {
		t.Fatal(err)
	}
	var count int
	var visit func(keys []key)
	visit = func(keys []key) {
		for _, k := range keys {
			count++
			if k.doc == "" {
				t.Errorf("%s: its struct field has no comment", k.path)
			}
			visit(k.children)
		}
	}
	visit(keys)
	if count < 50 {
		t.Errorf("only %d keys found: the walk over the structs is broken", count)
	}
}

func TestTheReferenceLoads(t *testing.T) {
	cfg, err := config.Load(filepath.Join(top, "configs", "reference.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Resources, want.Sinks = cfg.Resources, cfg.Sinks
	if got := *cfg; got.Journal != want.Journal || got.Delivery != want.Delivery || got.Admin != want.Admin || got.Log != want.Log || got.Cluster != want.Cluster {
		t.Errorf("the reference differs from the defaults: %+v", got)
	}
}

// TestReferenceUsesKeyNames finds names of Go fields, one text for two keys, and zero values that stand for another
// default.
func TestReferenceUsesKeyNames(t *testing.T) {
	keys, err := collectKeys(top)
	if err != nil {
		t.Fatal(err)
	}
	goName := regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*`)
	proper := []string{"JetStream", "JavaScript", "CloudEvents", "ConfigMap", "OpenTelemetry", "OpenAPI", "MiB", "GiB"}
	var visit func(keys []key)
	visit = func(keys []key) {
		texts := map[string]string{}
		for _, k := range keys {
			if name := goName.FindString(k.doc); name != "" && !slices.ContainsFunc(proper, func(p string) bool { return strings.HasPrefix(name, p) }) {
				t.Errorf("%s: the text has the Go name %s: %s", k.path, name, k.doc)
			}
			if other := texts[k.doc]; other != "" {
				t.Errorf("%s and %s have one text: %s", other, k.path, k.doc)
			}
			texts[k.doc] = k.path
			if k.children == nil && isZeroValue(k.value) && statedDefaultPattern.MatchString(k.doc) {
				t.Errorf("%s: %s is shown as the default of: %s", k.path, k.value, k.doc)
			}
			visit(k.children)
		}
	}
	visit(keys)
}
