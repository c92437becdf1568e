package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing wrong with a configuration.
type Problem struct {
	File     string // as given to [Load]; "environment" for a value that came from an environment variable
	Path     string // YAML path, "sinks[0].kafka.topic"; "" for the file as a whole
	Line     int    // 1 for the first line; 0 when no line is to blame
	Found    string // what stands there; may be empty
	Expected string // what should stand there; may be empty
	Message  string // what is wrong, for people
}

const (
	maxQuotedBytes = 80  // bytes of a value that is shown
	maxTextBytes   = 600 // of a part of a problem
)

// longValuePattern finds values in a text that are too long to be read.
var longValuePattern = regexp.MustCompile(`"(?:[^"\\]|\\.){` + strconv.Itoa(maxQuotedBytes) + `,}"|[^\s"]{` + strconv.Itoa(2*maxQuotedBytes) + `,}`)

// truncateText shortens what nobody would read: a value that was pasted into the wrong place may be a megabyte.
func truncateText(text string) string {
	if len(text) < maxQuotedBytes {
		return text
	}
	text = longValuePattern.ReplaceAllStringFunc(text, func(value string) string {
		kept := strings.ToValidUTF8(value[:maxQuotedBytes], "") + "…"
		if value[0] == '"' {
			kept += `"`
		}
		return kept
	})
	if len(text) > maxTextBytes {
		text = strings.ToValidUTF8(text[:maxTextBytes], "") + "…"
	}
	return text
}

// String writes the problem on one line: "FILE:LINE: PATH: MESSAGE: found FOUND, expected EXPECTED", without the parts
// that are empty.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Path != "" {
		b.WriteString(": " + p.Path)
	}
	b.WriteString(": " + p.Message)
	switch {
	case p.Found != "" && p.Expected != "":
		b.WriteString(": found " + p.Found + ", expected " + p.Expected)
	case p.Found != "":
		b.WriteString(": found " + p.Found)
	case p.Expected != "":
		b.WriteString(": expected " + p.Expected)
	}
	return strings.ReplaceAll(b.String(), "\n", " ")
}

// Error lists everything wrong with a configuration, in the order of the file's lines. The caller prints it and exits
// with the code for bad configuration; nothing was started.
type Error struct {
	Problems []Problem // at least one
}

// Error writes one problem a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// sortByLine orders problems by line; those without a line come last, in the order they were found.
func sortByLine(problems []Problem) []Problem {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Compare(a.Line, b.Line)
	})
	return problems
}
