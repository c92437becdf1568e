package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/kubecdc/kubecdc/tools/paragraph"
)

// defaultWidth is that of a line where there is no terminal that knows better: nothing breaks lines in a file.
const defaultWidth = 150

// style is a terminal's SGR parameters, as in ECMA-48.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	purple style = "35"
	cyan   style = "36"
)

var styleOfType = map[string]style{
	"added": green, "updated": yellow, deleted: red, "snapshot": cyan, gap: purple,
}

// narrator prints what a user reads. Its methods may be called concurrently; each prints whole lines.
type narrator struct {
	mu     sync.Mutex
	w      io.Writer
	width  int // of a line, in characters
	colour bool
	acts   int
}

// newNarrator asks the terminal for its width and colours. A pipe or a file gets neither, nor does NO_COLOR
// (https://no-color.org).
func newNarrator(w *os.File) *narrator {
	n := &narrator{w: w, width: defaultWidth}
	terminal := int(w.Fd())
	if !term.IsTerminal(terminal) {
		return n
	}
	if width, _, err := term.GetSize(terminal); err == nil && width > 0 {
		n.width = width
	}
	n.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return n
}

// title prints what this is about.
func (n *narrator) title(text string) { n.print(n.in(bold, text)) }

// act begins the next part of the script and prints its subject.
func (n *narrator) act(title, about string) {
	n.mu.Lock()
	n.acts++
	number := n.acts
	n.mu.Unlock()
	n.print("", n.in(bold, fmt.Sprintf("%d  %s", number, title)))
	if about != "" {
		n.note(about)
		n.gap()
	}
}

// note explains, in as many lines as it takes.
func (n *narrator) note(text string) {
	const readable = 100 // longer lines tire the eye
	for _, line := range paragraph.WrapText(text, min(n.width, readable)-indent) {
		n.print(strings.Repeat(" ", indent) + n.in(dim, line))
	}
}

// gap is an empty line.
func (n *narrator) gap() { n.print("") }

// action prints an action in the cluster, or on the exporter.
func (n *narrator) action(text string) { n.print(n.in(bold, " > "+text)) }

// fact prints a value with its name.
func (n *narrator) fact(name string, value any) { n.print(fmt.Sprintf("   %-28s %v", name, value)) }

// part prints what has started, and where it listens.
func (n *narrator) part(name, where string, took time.Duration) {
	n.print(fmt.Sprintf("   %-28s %-34s %5.1f s", name, where, took.Seconds()))
}

// verdict prints the last word on the account.
func (n *narrator) verdict(good bool, text string) {
	colour := red
	if good {
		colour = green
	}
	n.print("", n.in(colour, "   "+text))
}

// text prints lines as they are.
func (n *narrator) text(text string) { n.print(strings.TrimSuffix(text, "\n")) }

// Columns of the lines with events, in characters.
const (
	indent     = 3
	typeWidth  = 8
	nameWidth  = 17 // of a resource, and of an object
	byWidth    = 14
	leastWidth = 120 // of a line that has room for what changed; in a narrower one that stands below
)

func (n *narrator) narrow() bool { return n.width < leastWidth }

// columns prints the names above the lines that arrival prints.
func (n *narrator) columns() {
	at := pad("TIME", len(n.clock(time.Time{})))
	n.print(n.in(dim, n.row(at, pad("TYPE", typeWidth), "RESOURCE", "OBJECT", "BY")+"WHAT CHANGED"))
}

// arrival prints one line about an event, two where lines are short.
func (n *narrator) arrival(at time.Time, e *event, facts []string) {
	clock := n.clock(at)
	// Colours count as characters, so the room is that which an event without them leaves.
	room := n.width - len([]rune(n.row(clock, pad(e.Type, typeWidth), e.resource(), e.object(), e.author())))
	below := ""
	if n.narrow() {
		below = "\n" + strings.Repeat(" ", indent+len(clock)+2)
		room = n.width - len(below) + 1
	}
	kind := n.in(styleOfType[e.Type], pad(e.Type, typeWidth))
	line := n.row(clock, kind, e.resource(), e.object(), e.author())
	if n.narrow() {
		line = strings.TrimRight(line, " ")
	}
	n.print(line + below + fit(facts, room))
}

func (n *narrator) clock(at time.Time) string {
	if n.narrow() {
		return at.Format("15:04:05")
	}
	return at.Format("15:04:05.000")
}

// row aligns the columns. The type is padded by the caller, which knows whether it has a colour.
func (n *narrator) row(at, kind, resource, object, author string) string {
	return fmt.Sprintf("%s%s  %s  %s  %s  %s  ", strings.Repeat(" ", indent), at, kind,
		pad(resource, nameWidth), pad(object, nameWidth), pad(clip(author, byWidth), byWidth))
}

// pad makes a text at least that many characters long.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-len([]rune(text)), 0))
}

// fit joins as many facts as there is room for, and counts the others. The first one is always there, if need be cut.
func fit(facts []string, width int) string {
	const least = 20 // below that a line may as well be broken by the terminal
	width = max(width, least)
	line := ""
	for i, fact := range facts {
		longer := strings.TrimPrefix(line+", "+fact, ", ")
		rest := more(len(facts) - i - 1)
		if i > 0 && len([]rune(longer+rest)) > width {
			return line + more(len(facts)-i)
		}
		if i == 0 {
			longer = clip(longer, max(width-len(rest), least))
		}
		line = longer
	}
	return line
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", +%d more", n)
}

// in gives a text a style, where there are any.
func (n *narrator) in(s style, text string) string {
	if !n.colour || s == plain {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// print prints lines. An output without a reader ends the demo by SIGPIPE, see untilSignal, so its error means
// nothing new.
func (n *narrator) print(lines ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintln(n.w, strings.Join(lines, "\n"))
}
