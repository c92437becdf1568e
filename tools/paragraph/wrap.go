package paragraph

import (
	"strings"
	"unicode/utf8"
)

// WrapText breaks a text between words into lines of at most so many characters. A longer word has a line of its own. Blanks of
// any kind are one space.
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
