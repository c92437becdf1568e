package terminal

import (
	"io"
	"slices"
	"sync"
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
