package tap

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// notes is a log for a terminal: warnings, one line each, without time and level.
type notes struct {
	mu     *sync.Mutex
	w      io.Writer
	before string // attributes that every line has
}

func newNotes(w io.Writer) *notes { return &notes{mu: &sync.Mutex{}, w: w} }

var _ slog.Handler = (*notes)(nil)

func (n *notes) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (n *notes) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("! " + escapeUnprintable(r.Message) + n.before)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(formatAttribute(a))
		return true
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	_, err := fmt.Fprintln(n.w, b.String())
	return err
}

func (n *notes) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *n
	for _, a := range attrs {
		more.before += formatAttribute(a)
	}
	return &more
}

// WithGroup implements [slog.Handler]. Groups are not used here.
func (n *notes) WithGroup(string) slog.Handler { return n }

func formatAttribute(a slog.Attr) string {
	return "; " + a.Key + ": " + escapeUnprintable(a.Value.Resolve().String())
}
