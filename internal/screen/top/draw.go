package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

// The styles, as ANSI sequences.
const (
	bold   = "\x1b[1m"
	faint  = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	reset  = "\x1b[0m"
)

// page is a screen that is being drawn.
type page struct {
	width int
	color bool
	lines []string
}

// span is a part of a line.
type span struct{ style, text string }

// addLine adds a line, cut at the width of the screen. Unprintable characters are left out: they could control the terminal.
func (p *page) addLine(spans ...span) {
	var b strings.Builder
	room := p.width
	for _, s := range spans {
		var text strings.Builder
		for _, r := range s.text {
			if room == 0 {
				break
			}
			if unicode.IsPrint(r) {
				text.WriteRune(r)
				room--
			}
		}
		if p.color && s.style != "" && text.Len() > 0 {
			b.WriteString(s.style + text.String() + reset)
		} else {
			b.WriteString(text.String())
		}
	}
	p.lines = append(p.lines, b.String())
}

// drawScreen writes an overview on a screen of that size, a line each. Failing parts come first; lines that do not fit are
// counted.
func drawScreen(o *admin.Overview, width, height int, color bool) []string {
	p := &page{width: width, color: color}
	p.drawHeader(o)
	p.drawProblems(o, height/3)
	if o.Standby {
		p.addLine(span{"", "This process is a standby: it reads and delivers nothing now."})
		return p.lines
	}
	p.drawPipeline(o)
	p.drawSinks(o, max(2, height/4))
	p.drawResources(o, height-len(p.lines)-1)
	return p.lines
}

func (p *page) drawHeader(o *admin.Overview) {
	verdict := span{green + bold, "✓ ready"}
	switch {
	case !o.Ready:
		verdict = span{red + bold, "✗ not ready"}
	case len(o.Problems) > 0:
		verdict = span{yellow + bold, "! ready, but look"}
	}
	cluster := " · cluster " + cmp.Or(o.Cluster, "not known yet")
	if o.Standby {
		cluster = ""
	}
	role := ""
	if o.Role != "" {
		role = " · " + o.Role
	}
	p.addLine(verdict, span{faint, fmt.Sprintf("  kubecdc %s%s%s · %s", o.Version, cluster, role, o.Now.Local().Format("15:04:05"))})
	p.addLine()
}

// drawProblems draws as many problems as fit into a number of lines, at least one, and counts the others.
func (p *page) drawProblems(o *admin.Overview, room int) {
	before := len(p.lines)
	for i, problem := range o.Problems {
		lines := describeProblem(problem, p.width)
		if i > 0 && len(p.lines)-before+len(lines) > room {
			p.addLine(span{faint, fmt.Sprintf("  and %d more, see /readyz", len(o.Problems)-i)})
			break
		}
		sign, style := "! ", yellow
		if problem.Counts {
			sign, style = "✗ ", red
		}
		since := ""
		if !problem.Since.IsZero() {
			since = "  since " + problem.Since.Local().Format("15:04:05")
		}
		p.addLine(span{style, sign + problem.Name + "  "}, span{bold, string(problem.Code)}, span{faint, since})
		for _, line := range lines {
			p.addLine(span{"", line})
		}
	}
	if len(o.Problems) > 0 {
		p.addLine()
	}
}

// describeProblem returns cause, effect and remedy as indented lines.
func describeProblem(problem condition.Report, width int) (lines []string) {
	const indent = "  "
	for _, part := range []string{problem.Cause, "Effect: " + problem.Effect, "Remedy: " + problem.Remedy} {
		for _, line := range wrapText(part, max(1, width-len(indent))) {
			lines = append(lines, indent+line)
		}
	}
	return lines
}

// wrapText breaks a text between words into lines of at most width characters; a longer word has a line of its own.
func wrapText(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// drawPipeline draws the stations that all changes pass.
func (p *page) drawPipeline(o *admin.Overview) {
	p.addLine(span{bold, "API server"}, span{cyan, " " + admin.FormatRate(o.APIServer.Rate) + " events/s"}, span{faint, " → "},
		span{bold, "resources"}, span{cyan, " " + admin.FormatRate(o.Changes.Rate) + " changes/s"}, span{faint, " → "},
		span{bold, "journal"}, span{cyan, " " + admin.FormatBytes(o.Journal.RetainedBytes) + " of " + admin.FormatBytes(o.Journal.MaxBytes)})
	p.addLine(span{cyan, drawSparkline(o.Changes.Points, min(60, p.width))})
	p.addLine()
}

func (p *page) drawSinks(o *admin.Overview, most int) {
	const delivers = "delivers"
	state := len(delivers) // width of the column
	for _, k := range o.Sinks {
		state = max(state, len(k.Code))
	}
	p.addLine(span{faint, fmt.Sprintf("%-20s %-*s %10s %12s %9s %6s %8s  %s", "SINK", state, "STATE", "CHANGES/S", "WAITING", "BEHIND", "LANES", "FAILING", "DEAD LETTERS")})
	for i, k := range o.Sinks {
		if i == most {
			p.addLine(span{faint, fmt.Sprintf("and %d more", len(o.Sinks)-i)})
			break
		}
		behind := (time.Duration(k.LagSeconds*1000) * time.Millisecond).Round(100 * time.Millisecond)
		p.addLine(span{healthStyle(k.Sick, k.NotReady), fmt.Sprintf("%-20s %-*s", truncate(k.Name, 20), state, cmp.Or(k.Code, delivers))},
			span{"", fmt.Sprintf(" %10s %12d %9s %6d %8d  %d  ", admin.FormatRate(k.Rate), k.Backlog, behind, k.Lanes, k.Failing, k.DeadLetters)},
			span{cyan, drawSparkline(k.Points, 20)})
	}
	p.addLine()
}

func (p *page) drawResources(o *admin.Overview, most int) {
	name := min(48, max(20, p.width-52))
	p.addLine(span{faint, fmt.Sprintf("%-*s %-12s %10s %9s", name, fmt.Sprintf("RESOURCE (%d, %d failing)", len(o.Resources), o.Sick), "STATE", "CHANGES/S", "OBJECTS")})
	for i, r := range o.Resources {
		if i >= most-2 && len(o.Resources) > i+1 {
			p.addLine(span{faint, fmt.Sprintf("and %d more", len(o.Resources)-i)})
			return
		}
		p.addLine(span{healthStyle(r.Sick, r.NotReady), fmt.Sprintf("%-*s %-12s", name, truncate(r.Name, name), r.State)},
			span{"", fmt.Sprintf(" %10s %9d  ", admin.FormatRate(r.Rate), r.Known)}, span{cyan, drawSparkline(r.Points, 16)})
	}
}

// healthStyle is the style of a failing part: that of the problem that explains it.
func healthStyle(yes, notReady bool) string {
	switch {
	case notReady:
		return red
	case yes:
		return yellow
	}
	return ""
}

// truncate cuts a text to a number of characters.
func truncate(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// bars are how high a rate is, in eighths.
var bars = []rune("▁▂▃▄▅▆▇█")

// drawSparkline draws the newest rates, one character each.
func drawSparkline(points []float64, width int) string {
	points = points[max(0, len(points)-width):]
	if len(points) == 0 || slices.Max(points) == 0 {
		return ""
	}
	top := slices.Max(points)
	line := make([]rune, len(points))
	for i, v := range points {
		line[i] = bars[int(math.Round(v/top*float64(len(bars)-1)))]
	}
	return string(line)
}
