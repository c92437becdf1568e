package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// intro is the handwritten part of the page.
//
//go:embed intro.md
var intro string

// renderPage renders docs/configuration.md: the intro, then a table for each mapping.
func renderPage(keys []key) []byte {
	var b strings.Builder
	b.WriteString(intro)
	page{&b, map[string]string{}}.writeSection(keys, 2)
	return []byte(b.String())
}

// page is written table by table. A mapping that has the keys of an earlier one refers to that: sections has its path by
// the text of its table.
type page struct {
	*strings.Builder
	sections map[string]string
}

func (p page) writeSection(keys []key, level int) {
	for _, k := range keys {
		if k.children == nil || level > 2 && k.isShort() {
			continue
		}
		table := p.renderTable(k.children)
		if first := p.sections[table]; first != "" && first != k.path {
			continue
		}
		fmt.Fprintf(p, "\n%s `%s`\n\n%s\n%s", strings.Repeat("#", level), k.path, k.doc, table)
		p.writeSection(k.children, min(level+1, 5))
	}
}

// isShort reports whether the keys of a mapping stand in the table of the mapping around it.
func (k key) isShort() bool { return len(k.children) <= 4 }

func (p page) renderTable(keys []key) string {
	return "\n| key | value | meaning |\n|---|---|---|\n" + p.renderRows(keys, "")
}

func (p page) renderRows(keys []key, above string) string {
	var b strings.Builder
	for _, k := range keys {
		value, meaning, below := k.kind, statedDefaultSentence.ReplaceAllString(k.doc, ""), ""
		switch {
		case k.children != nil && k.isShort():
			below = p.renderRows(k.children, above+k.path[strings.LastIndex(k.path, k.name):]+".")
		case k.children != nil:
			table := p.renderTable(k.children)
			if p.sections[table] == "" {
				p.sections[table] = k.path
			}
			value, meaning = fmt.Sprintf("[%s](#%s)", k.kind, notInAnchors.ReplaceAllString(strings.ToLower(p.sections[table]), "")), ""
		case k.value != "" && k.value != "false" && !isZeroValue(k.value):
			value += ", `" + k.value + "`"
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s |\n%s", above, k.name, value, escapeCell(meaning), below)
	}
	return b.String()
}

// statedDefaultSentence matches a default that stands in the column before.
var statedDefaultSentence = regexp.MustCompile(`\s?\bDefault ("[^"]*"|[\w,]*\w|8 MiB)(\.|;)`)

// notInAnchors matches what the address of a heading lacks.
var notInAnchors = regexp.MustCompile(`[^a-z]`)

// escapeCell makes text safe for a Markdown table.
func escapeCell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}
