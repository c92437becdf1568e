package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/kubecdc/kubecdc/internal/config"
)

// intro is the handwritten part of the page.
//
//go:embed intro.md
var intro string

// renderPage renders docs/configuration.md: the intro, then a table for each mapping.
func renderPage(keys []key) []byte {
	var b strings.Builder
	b.WriteString(intro)
	writeSection(&b, keys, 2)
	return []byte(b.String())
}

func writeSection(b *strings.Builder, keys []key, level int) {
	for _, k := range keys {
		if k.children == nil {
			continue
		}
		fmt.Fprintf(b, "\n%s `%s`\n\n%s\n", strings.Repeat("#", level), k.path, k.doc)
		writeTable(b, k.children)
		writeSection(b, k.children, min(level+1, 5))
	}
}

func writeTable(b *strings.Builder, keys []key) {
	b.WriteString("\n| key | value | default | meaning |\n|---|---|---|---|\n")
	for _, k := range keys {
		value, meaning := "`"+k.value+"`", k.doc
		if k.value == "" || hasNoDefault(k) {
			value = ""
		}
		if k.variable {
			meaning += " Variable: `" + config.EnvironmentName(k.path) + "`."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", k.name, k.kind, value, escapeCell(meaning))
	}
}

// hasNoDefault reports whether a key has no default. A zero value is shown only if the text of the key explains it.
func hasNoDefault(k key) bool {
	return isZeroValue(k.value) && !zeroMeaningPattern.MatchString(k.doc)
}

// zeroMeaningPattern matches the explanation of a zero value.
var zeroMeaningPattern = regexp.MustCompile(`(?i)\bempty\b|\b0s?\b|\bnone\b`)

// escapeCell makes text safe for a Markdown table.
func escapeCell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}
