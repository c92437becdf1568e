package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

var (
	yamlBlock  = regexp.MustCompile("(?m)^( *)```yaml\n((?s:.*?))^ *```")
	secretFile = regexp.MustCompile(`\{file: [^}]*\}`)
	topKey     = regexp.MustCompile(`(?m)^([A-Za-z]+):`)
)

// sections are those of the configuration. A block with other keys belongs to another program.
var sections = []string{
	"admin", "audit", "cluster", "delivery", "election", "journal", "log", "redaction", "resources", "routes", "signals", "sinks", "state",
}

// destinations are the kinds of sinks. A block with one of them alone is a part of a sink.
var destinations = []string{"kafka", "nats", "stdout", "webhook"}

// TestConfigurationsOfThePagesAreAccepted loads every block of YAML on the pages that has no mark: see test/docs for the
// marks. One that shows a part of a configuration gets the rest, and files that it names exist.
func TestConfigurationsOfThePagesAreAccepted(t *testing.T) {
	key, loaded := write(t, "key", "0123456789abcdef, of a page"), 0
	for _, path := range pagesOf(t) {
		for _, block := range yamlBlock.FindAllStringSubmatch(textOf(t, filepath.Join("../..", path)), -1) {
			text, has := strings.ReplaceAll("\n"+block[2], "\n"+block[1], "\n"), map[string]bool{}
			for _, m := range topKey.FindAllStringSubmatch(text, -1) {
				has[m[1]] = true
			}
			switch {
			case onlyOf(has, destinations):
				if !strings.Contains(text, "brokers:") {
					text = strings.Replace(text, "kafka:\n", "kafka:\n  brokers: ['127.0.0.1:9092']\n", 1)
				}
				if !strings.Contains(text, "topic:") {
					text = strings.Replace(text, "kafka:\n", "kafka:\n  topic: t\n", 1)
				}
				text = "sinks:\n  - name: main\n" + strings.ReplaceAll(text, "\n", "\n    ")
			case !onlyOf(has, sections):
				t.Errorf("%s: this is no configuration, and has no mark:\n%s", path, text)
				continue
			case !has["sinks"]:
				text += "\nsinks: [{name: main, kafka: {brokers: ['127.0.0.1:9092'], topic: t}}, {name: audit, stdout: {}}, " +
					"{name: nats, nats: {url: 'nats://127.0.0.1', stream: K8S, subject: 'k8s.{resource}.{name}'}}]\n"
			}
			if !has["resources"] {
				text += "\nresources: [{select: ['*', secrets, events, leases.coordination.k8s.io]}]\n"
			}
			text = secretFile.ReplaceAllString(text, "{file: "+key+"}")
			loaded++
			if _, err := config.LoadWithoutSinkFiles(write(t, "page.yaml", text)); err != nil {
				t.Errorf("%s: %v\n%s", path, err, text)
			}
		}
	}
	if loaded < 15 {
		t.Errorf("%d blocks are found", loaded)
	}
}

// onlyOf reports whether there are keys, and all of them are known.
func onlyOf(has map[string]bool, known []string) bool {
	for key := range has {
		if !slices.Contains(known, key) {
			return false
		}
	}
	return len(has) > 0
}
