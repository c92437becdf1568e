package logs

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// Buffer is a log. Its zero value is empty. It is safe for concurrent use.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed by the next write; nil without a waiter
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
	return b.text.Write(p)
}

// Logger returns a logger that writes to the buffer.
func (b *Buffer) Logger() *slog.Logger { return WithoutTime(b) }

// WithoutTime returns a logger that writes lines of text without their times.
func WithoutTime(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// StringAndNext returns the text so far, and a channel that the next write closes: no write comes between the two.
func (b *Buffer) StringAndNext() (text string, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.more == nil {
		b.more = make(chan struct{})
	}
	return b.text.String(), b.more
}

// Lines returns the lines so far, without their ends.
func (b *Buffer) Lines() (all []string) {
	for line := range strings.Lines(b.String()) {
		all = append(all, strings.TrimSuffix(line, "\n"))
	}
	return all
}

// CountOf returns how often the log contains a text.
func (b *Buffer) CountOf(text string) int { return strings.Count(b.String(), text) }
