package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/kubecdc/kubecdc/internal/config"
)

// intro is the part of the page that people write.
//
//go:embed intro.md
var intro string

// page renders docs/configuration.md: the intro, then a table for each mapping.
func page(keys []key) []byte {
	var b strings.Builder
	b.WriteString(intro)
	section(&b, keys, 2)
	return []byte(b.String())
}

func section(b *strings.Builder, keys []key, level int) {
	for _, k := range keys {
		if k.children == nil {
			continue
		}
		fmt.Fprintf(b, "\n%s `%s`\n\n%s\n", strings.Repeat("#", level), k.path, k.doc)
		table(b, k.children)
		section(b, k.children, min(level+1, 5))
	}
}

func table(b *strings.Builder, keys []key) {
	b.WriteString("\n| key | value | default | meaning |\n|---|---|---|---|\n")
	for _, k := range keys {
		value, meaning := "`"+k.value+"`", k.doc
		if k.value == "" || silent(k) {
			value = ""
		}
		if k.variable {
			meaning += " Variable: `" + config.EnvironmentName(k.path) + "`."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", k.name, k.kind, value, cell(meaning))
	}
}

// silent says that a key has no default: its zero value is shown only where the text says what that means.
func silent(k key) bool {
	return zero(k.value) && !meaning.MatchString(k.doc)
}

// meaning is how texts speak of zero values.
var meaning = regexp.MustCompile(`(?i)\bempty\b|\b0s?\b|\bnone\b`)

// cell makes text safe for a Markdown table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}
