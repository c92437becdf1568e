package tap

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/screen/field"
	"github.com/kubecdc/kubecdc/internal/screen/terminal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// The forms in which changes are shown.
const (
	Diff = "diff" // a line for people, and field by field what changed
	JSON = "json" // the native format, one object a line
	YAML = "yaml" // the same as documents
	Name = "name" // type, resource and object
)

// Formats lists the forms.
var Formats = []string{Diff, JSON, YAML, Name}

// Printer writes changes. It is used by one goroutine.
type Printer struct {
	out    io.Writer
	format string
	color  bool
	once   bool
	buf    []byte
}

// NewPrinter returns a printer that writes to out in one of [Formats], in color if asked. With once it has enough after one
// change.
func NewPrinter(out io.Writer, format string, color, once bool) *Printer {
	return &Printer{out: out, format: format, color: color, once: once}
}

// stopWithin bounds how long connections may take to end.
const stopWithin = 250 * time.Millisecond

// printWhile writes what read sends, and ends as follow does. Then it stops read, which gets a context for that.
func (p *Printer) printWhile(ctx context.Context, changes <-chan *event.Change, read func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, stopped := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(stopped)
		ended <- read(ctx)
	}()
	err := p.printChanges(ctx, changes, ended)
	cancel()
	select {
	case <-stopped:
	case <-time.After(stopWithin):
	}
	return err
}

// printChanges writes changes until ctx ends, which is no error, the sender ends, or one change was enough. A terminal
// that takes no more is not waited for once ctx ends.
func (p *Printer) printChanges(ctx context.Context, changes <-chan *event.Change, ended <-chan error) error {
	written := make(chan error, 1)
	go func() { written <- p.writeChange(ctx, changes) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	case err := <-written:
		return err
	}
}

func (p *Printer) writeChange(ctx context.Context, changes <-chan *event.Change) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-changes:
			if err := p.formatChange(c); err != nil || p.once {
				return err
			}
		}
	}
}

// formatChange writes one change in one piece.
func (p *Printer) formatChange(c *event.Change) error {
	b := p.buf[:0]
	switch p.format {
	case JSON:
		b = append(terminal.AppendEscaped(b, format.AppendJSON(nil, c), terminal.EscapeJSON), '\n')
	case YAML:
		var err error
		if b, err = field.AppendYAML(b, format.AppendJSON(nil, c)); err != nil {
			return err
		}
	case Name:
		b = fmt.Appendf(b, "%s %s\n", field.EscapeUnprintable(fmt.Sprint(c.Type, " ", c.Resource)), objectOf(c))
	default:
		b = append(b, p.formatSummary(c)...)
	}
	const keep = 64 << 10
	if p.buf = b; cap(b) > keep {
		p.buf = nil
	}
	_, err := p.out.Write(b)
	return err
}

// signs are how lines of changes begin.
var signs = map[event.Type]struct {
	sign  string
	style style
}{
	event.Added:   {"+", green},
	event.Updated: {"~", yellow},
	event.Deleted: {"-", red},
	event.Gap:     {"!", red},
}

// formatSummary writes a change for people.
func (p *Printer) formatSummary(c *event.Change) string {
	look, ok := signs[c.Type]
	if !ok {
		look.sign, look.style = "·", cyan
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s %s", p.withStyle(faint, c.ObservedAt.Local().Format("15:04:05.000")), p.withStyle(look.style, look.sign),
		field.EscapeUnprintable(c.Resource.String()), p.withStyle(bold, objectOf(c)))
	if about := describeChange(c); about != "" {
		b.WriteString("  " + p.withStyle(faint, about))
	}
	b.WriteByte('\n')
	for _, line := range p.formatDetails(c) {
		b.WriteString("    " + line + "\n")
	}
	return b.String()
}

// formatDetails returns the lines below the summary of a change.
func (p *Printer) formatDetails(c *event.Change) []string {
	switch {
	case c.Gap != nil:
		return []string{field.EscapeUnprintable(c.Gap.Reason)}
	case c.Withheld != "":
		return []string{field.EscapeUnprintable(c.Withheld)}
	case c.Type == event.Updated && c.Before != nil && c.After != nil:
		return p.describeDifference(c.Before, c.After)
	}
	return nil
}

// objectOf names the object of a change; "*" for a control record, which speaks of all.
func objectOf(c *event.Change) string {
	name := c.Name
	if name == "" {
		name = "*"
	}
	if c.Namespace != "" {
		name = c.Namespace + "/" + name
	}
	return field.EscapeUnprintable(name)
}

// describeChange lists the properties of a change other than its object.
func describeChange(c *event.Change) string {
	var about []string
	if _, known := signs[c.Type]; !known {
		about = append(about, string(c.Type))
	}
	about = append(about, string(c.Class))
	if c.FinalStateUnknown {
		about = append(about, "final state unknown")
	}
	if c.Coalesced {
		about = append(about, "coalesced")
	}
	if c.Actor != nil {
		about = append(about, "by "+c.Actor.Manager)
	}
	return field.EscapeUnprintable(strings.Join(slices.DeleteFunc(about, func(s string) bool { return s == "" }), ", "))
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

// notes is a log for a terminal: warnings, one line each, without time and level.
type notes struct {
	mu     *sync.Mutex
	w      io.Writer
	before string // attributes that every line has
}

var _ slog.Handler = (*notes)(nil)

func (n *notes) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (n *notes) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("! " + field.EscapeUnprintable(r.Message) + n.before)
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
	return "; " + a.Key + ": " + field.EscapeUnprintable(a.Value.Resolve().String())
}
