package tap

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// escapeUnprintable writes text from a cluster so that it cannot steer a terminal: what is not printable is escaped.
func escapeUnprintable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		q := strconv.QuoteToGraphic(s)
		return q[1 : len(q)-1]
	}
	return s
}

// escapeYAML writes a character as YAML does (YAML 1.2.2, section 5.7).
func escapeYAML(b []byte, r rune) []byte { return fmt.Appendf(b, `\U%08x`, r) }

// truncate cuts a text to at most so many characters.
func truncate(s string, most int) string {
	n := 0
	for i := range s {
		if n == most {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// A style is how a part of a line looks, as an ANSI sequence.
type style string

const (
	plain  style = ""
	bold   style = "\x1b[1m"
	faint  style = "\x1b[2m"
	red    style = "\x1b[31m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
	cyan   style = "\x1b[36m"
	reset  style = "\x1b[0m"
)

// withStyle writes text in a style and leaves the terminal as it was.
func (p *Printer) withStyle(s style, text string) string {
	if !p.color || s == plain || text == "" {
		return text
	}
	return string(s) + text + string(reset)
}
