package paragraph

import (
	"strings"
	"unicode/utf8"
)

// WrapText breaks text between words into lines of at most width characters. A longer word gets its own line. Any white
// space counts as one space.
func WrapText(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		longer := strings.TrimPrefix(line+" "+word, " ")
		if line != "" && utf8.RuneCountInString(longer) > width {
			lines = append(lines, line)
			longer = word
		}
		line = longer
	}
	return append(lines, line)
}
