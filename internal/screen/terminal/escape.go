package terminal

import (
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Steers reports whether a character may act on a terminal: C0 and C1 controls except the ends of lines and tabs, those that
// reverse or hide text (Unicode Standard Annex #9), and separators of lines that are not ASCII.
func Steers(r rune) bool {
	switch {
	case r == '\n', r == '\t', ' ' <= r && r < 0x7f:
		return false
	case r <= 0x85:
		return true
	}
	return !unicode.IsPrint(r) && !unicode.IsSpace(r) || unicode.In(r, unicode.Zl, unicode.Zp)
}

// AppendEscaped appends text in UTF-8 with escapes in place of characters that steer a terminal, and of bytes that are not
// UTF-8, for which escape gets [utf8.RuneError]. escape appends one.
func AppendEscaped(b, text []byte, escape func([]byte, rune) []byte) []byte {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if Steers(r) || r == utf8.RuneError && size == 1 {
			b = escape(b, r)
		} else {
			b = append(b, text[:size]...)
		}
		text = text[size:]
	}
	return b
}

// EscapeJSON appends a character as it is escaped in JSON (RFC 8259, section 7): JSON stays the same value.
func EscapeJSON(b []byte, r rune) []byte {
	for _, unit := range utf16.Encode([]rune{r}) {
		b = fmt.Appendf(b, `\u%04x`, unit)
	}
	return b
}
