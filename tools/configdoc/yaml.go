package main

import (
	"fmt"
	"strconv"
	"strings"
)

const referenceHead = `# yaml-language-server: $schema=../` + schemaFile + `
# Every key the exporter knows, with its default. Generated from the code ("make generate"): do not edit.
# Keys without a useful default have an example. In a sink, an empty or zero value takes the default its comment names.
#
# Durations have a unit ("100ms", "30s", "5m"); sizes may have one ("64Mi", "10Gi"). Any string may be a reference instead:
# {env: NAME} or {file: PATH}. An unknown key is an error. See docs/configuration.md.
`

// examples stand where a key has no default that loads, by path.
var examples = map[string]string{
	"resources[].select":        `["pods", "deployments.apps"]`,
	"sinks[].kafka.brokers":     `["127.0.0.1:9092"]`,
	"sinks[].history.dir":       `"./history"`,
	"sinks[].kafka.topic":       `"k8s.{group}.{resource}"`,
	"sinks[].nats.url":          `"nats://127.0.0.1:4222"`,
	"sinks[].webhook.url":       `"https://receiver.example/events"`,
	"sinks[].nats.stream":       `"K8S"`,
	"sinks[].nats.subject":      `"k8s.{cluster}.{group}.{resource}.{namespace}.{name}"`,
	"sinks[].deadLetters.sink":  `"main"`,
	"sinks[].deadLetters.topic": `"k8s.dead.{resource}"`,
	"routes[].select":           `["pods"]`,
	"routes[].drop":             `true`,
}

// renderReference renders configs/reference.yaml: one rule, one sink of each kind, and one route.
func renderReference(keys []key) []byte {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, k := range keys {
		b.WriteString("\n" + wrapComment(0, k.doc))
		switch k.path {
		case "resources[]":
			b.WriteString("resources:\n" + indentItem(renderBlock(0, k.children)))
		case "sinks[]":
			b.WriteString("sinks:\n")
			for place, destination := range []string{"kafka", "nats", "webhook", "stdout", "history"} {
				b.WriteString(indentItem(renderBlock(0, sinkKeys(k.children, destination, place == 0))))
			}
		case "routes[]":
			b.WriteString("routes:\n" + indentItem(renderBlock(0, k.children)))
		default:
			b.WriteString(renderKey(0, k))
		}
	}
	return []byte(b.String())
}

// sinkKeys returns the keys of a sink with one destination. Keys that all sinks share are explained at the first sink.
func sinkKeys(keys []key, destination string, first bool) []key {
	var kept []key
	for _, k := range keys {
		shared := k.name == "deadLetters"
		if k.children != nil && k.name != destination && (!shared || !first) {
			continue
		}
		if k.children == nil && !first {
			k.doc = ""
		}
		if k.name == "name" {
			k.value = strconv.Quote(map[string]string{"kafka": "main", "nats": "bus", "webhook": "hook", "stdout": "console", "history": "history"}[destination])
		}
		if k.name == "format" && destination == "webhook" {
			k.value = `"cloudevents"` // it takes no other
		}
		kept = append(kept, k)
	}
	return kept
}

// renderBlock renders keys, each below its comment.
func renderBlock(depth int, keys []key) string {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(wrapComment(depth, k.doc) + renderKey(depth, k))
	}
	return b.String()
}

// renderKey renders a key and what is below it.
func renderKey(depth int, k key) string {
	indent := strings.Repeat("  ", depth)
	if k.list {
		var items string
		for _, child := range k.children {
			items += wrapComment(depth, fmt.Sprintf("Items have %s (%s): %s", child.name, child.kind, child.doc))
		}
		return items + indent + k.name + ": " + k.value + "\n"
	}
	if k.children != nil {
		return indent + k.name + ":\n" + renderBlock(depth+1, k.children)
	}
	value := k.value
	if example, ok := examples[k.path]; ok {
		value = example
	}
	return indent + k.name + ": " + value + "\n"
}

// indentItem indents a block as an item of a list: the dash stands before the first line that is no comment.
func indentItem(block string) string {
	var b strings.Builder
	indent := "  "
	for line := range strings.Lines(block) {
		if indent == "  " && !strings.HasPrefix(line, "#") {
			b.WriteString("  - " + line)
			indent = "    "
			continue
		}
		b.WriteString(indent + line)
	}
	return b.String()
}

// wrapComment wraps text into comment lines.
func wrapComment(depth int, text string) string {
	const width = 110
	var b strings.Builder
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width-2*depth {
			b.WriteString(strings.Repeat("  ", depth) + "#" + line + "\n")
			line = ""
		}
		line += " " + word
	}
	if line != "" {
		b.WriteString(strings.Repeat("  ", depth) + "#" + line + "\n")
	}
	return b.String()
}
