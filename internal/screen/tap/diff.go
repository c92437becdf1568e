package tap

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/internal/screen/field"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
)

// Bounds of what is shown of one change.
const (
	maxLines  = 40  // differences, and lines of one text
	maxValue  = 100 // characters of a value
	maxPath   = 60  // characters that paths are padded to
	keptStart = 20  // characters that are shown of a long beginning that two values share
)

// describeDifference writes field by field what two states of an object differ in.
func (p *Printer) describeDifference(before, after []byte) []string {
	fields := slices.DeleteFunc(diff.Between(before, after), func(f diff.Difference) bool { return field.IsBookkeeping(f.Path) })
	if len(fields) == 0 {
		return []string{p.withStyle(faint, "nothing that is shown: a masked value, or bookkeeping")}
	}
	width := 0
	for i := range fields {
		fields[i].Path = field.PathOf(fields[i].Path)
		width = max(width, min(len([]rune(fields[i].Path)), maxPath))
	}
	var lines []string
	for i, f := range fields {
		if len(lines) >= maxLines {
			return append(lines, p.withStyle(faint, "… and "+formatCount(len(fields)-i, "more field")))
		}
		lines = append(lines, p.formatField(f, width)...)
	}
	return lines
}

// formatField writes what became of a field.
func (p *Printer) formatField(f diff.Difference, width int) []string {
	path := f.Path + strings.Repeat(" ", max(0, width-len([]rune(f.Path))))
	was, wasText := field.DecodeText(f.From)
	is, isText := field.DecodeText(f.To)
	if wasText && isText && strings.ContainsRune(was+is, '\n') {
		return append([]string{p.withStyle(cyan, f.Path)}, p.diffLines(was, is)...)
	}
	switch {
	case f.From == nil:
		return []string{p.withStyle(cyan, path) + "  " + p.withStyle(green, "+ "+field.Truncate(field.Describe(f.To), maxValue))}
	case f.To == nil:
		return []string{p.withStyle(cyan, path) + "  " + p.withStyle(red, "- "+field.Truncate(field.Describe(f.From), maxValue))}
	}
	before, after := truncateBoth(field.Describe(f.From), field.Describe(f.To))
	return []string{p.withStyle(cyan, path) + "  " + p.withStyle(red, before) + " → " + p.withStyle(green, after)}
}

// diffLines writes the lines that two texts differ in.
func (p *Printer) diffLines(was, is string) []string {
	removed, added := unequalLines(strings.Split(was, "\n"), strings.Split(is, "\n"))
	for i := range max(len(removed), len(added)) {
		switch {
		case i >= len(added):
			removed[i] = field.Truncate(field.EscapeUnprintable(removed[i]), maxValue)
		case i >= len(removed):
			added[i] = field.Truncate(field.EscapeUnprintable(added[i]), maxValue)
		default:
			removed[i], added[i] = truncateBoth(field.EscapeUnprintable(removed[i]), field.EscapeUnprintable(added[i]))
		}
	}
	var all []string
	for _, part := range []struct {
		sign  string
		style style
		lines []string
	}{{"- ", red, removed}, {"+ ", green, added}} {
		for i, line := range part.lines {
			if i == maxLines/2 {
				all = append(all, p.withStyle(faint, "  … "+formatCount(len(part.lines)-i, "more line")))
				break
			}
			all = append(all, p.withStyle(part.style, "  "+part.sign+line))
		}
	}
	return all
}

// maxCompared bounds the lines that unequalLines compares with each other.
const maxCompared = 1000

// unequalLines returns the lines of a and of b that are not in their longest common subsequence. Where the part between
// their common beginning and their common end is too long for that, it returns the part.
func unequalLines(a, b []string) (onlyA, onlyB []string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a) > maxCompared || len(b) > maxCompared {
		return a, b
	}
	common := make([][]int, len(a)+1) // of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			onlyA, i = append(onlyA, a[i]), i+1
		default:
			onlyB, j = append(onlyB, b[j]), j+1
		}
	}
	return append(onlyA, a[i:]...), append(onlyB, b[j:]...)
}

// truncateBoth cuts two texts that differ, so that the difference is shown: a long beginning that they share is cut too.
func truncateBoth(a, b string) (string, string) {
	shared, before := 0, []int{} // the shared characters, and where they start
	for i, r := range a {
		if other, _ := utf8.DecodeRuneInString(b[min(i, len(b)):]); i >= len(b) || other != r {
			break
		}
		shared, before = shared+1, append(before, i)
	}
	if shared >= maxValue {
		start := before[shared-keptStart]
		a, b = "…"+a[start:], "…"+b[start:]
	}
	return field.Truncate(a, maxValue), field.Truncate(b, maxValue)
}
