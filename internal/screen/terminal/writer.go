package terminal

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Writer escapes what steers a terminal, in the form of JSON. What it writes therefore is the same for a program that reads
// JSON, and visible in text. Safe for concurrent use.
type Writer struct {
	Raw io.Writer // gets the output; each call of Write is one of Raw's

	mu      sync.Mutex
	partial []byte // the beginning of a character whose rest comes with the next call
}

// NewWriter returns a Writer that writes to raw.
func NewWriter(raw io.Writer) *Writer { return &Writer{Raw: raw} }

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := slices.Concat(w.partial, p)
	whole := wholeCharacters(text)
	w.partial = slices.Clone(text[whole:])
	if whole == 0 {
		return len(p), nil
	}
	if _, err := w.Raw.Write(AppendEscaped(make([]byte, 0, whole), text[:whole], EscapeJSON)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes the beginning of a character that was never completed.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.partial) == 0 {
		return nil
	}
	_, err := w.Raw.Write(AppendEscaped(nil, w.partial, EscapeJSON))
	w.partial = nil
	return err
}

// wholeCharacters returns the length of text without a character that is cut off at its end.
func wholeCharacters(text []byte) int {
	for n := len(text) - 1; n >= 0 && n > len(text)-utf8.UTFMax; n-- {
		if utf8.RuneStart(text[n]) {
			if !utf8.FullRune(text[n:]) {
				return n
			}
			break
		}
	}
	return len(text)
}

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
