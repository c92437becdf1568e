package style

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/markdown"
)

// habits are ways of writing that a reader stumbles over when they come often. The bounds count in 1,000 words.
var habits = []struct {
	name  string
	found *regexp.Regexp
	bound float64
}{
	{"say, tell", regexp.MustCompile(`(?i)\b(?:say|says|said|saying|tell|tells|told|telling|untold)\b`), 0.8},
	{"nobody, somebody, who", regexp.MustCompile(`(?i)\b(?:nobody|somebody|who|whoever|whom|whose)\b`), 0.5},
	{"sentences that begin with What or Who", regexp.MustCompile(`(?m)(?:^|[.!?:]["')]?\s+|^\W+)(?:What|Who|Whoever|Whatever)\b`), 0.5},
	{"anew, besides, amiss", regexp.MustCompile(`(?i)\b(?:anew|besides|amiss)\b`), 0.8},
}

// passage is a piece of prose with the place where it begins.
type passage struct {
	path string
	line int
	text string
}

// TestCommentsAreInPlainWords of the product and of its tests.
func TestCommentsAreInPlainWords(t *testing.T) {
	measure(t, "comments", comments(t))
}

// TestPagesAreInPlainWords of README and docs, without code.
func TestPagesAreInPlainWords(t *testing.T) {
	measure(t, "pages", pages(t))
}

// TestMessagesAreInPlainWords that logs, conditions, metrics and errors show: the string literals of the product.
func TestMessagesAreInPlainWords(t *testing.T) {
	measure(t, "messages", messages(t))
}

var word = regexp.MustCompile(`[A-Za-z][A-Za-z'’-]*`)

func measure(t *testing.T, kind string, passages []passage) {
	t.Helper()
	words := 0
	found := make([]int, len(habits))
	for _, p := range passages {
		words += len(word.FindAllString(p.text, -1))
		for i, h := range habits {
			for _, at := range h.found.FindAllStringIndex(p.text, -1) {
				found[i]++
				if *list {
					start := p.line + strings.Count(p.text[:at[0]], "\n")
					fmt.Printf("%s:%d: %s: %s\n", p.path, start, h.name, lineAround(p.text, at[1]))
				}
			}
		}
	}
	t.Logf("%d words of %s", words, kind)
	for i, h := range habits {
		judge(t, h.name+", in 1,000 words", 1000*float64(found[i])/float64(max(words, 1)), h.bound)
	}
}

// lineAround returns the line of the text that ends at or after the offset.
func lineAround(text string, to int) string {
	begin := strings.LastIndexByte(text[:to], '\n') + 1
	end := strings.IndexByte(text[to:], '\n')
	if end < 0 {
		return strings.TrimSpace(text[begin:])
	}
	return strings.TrimSpace(text[begin : to+end])
}

var directive = regexp.MustCompile(`^//(?:go:|nolint|line )`)

func comments(t *testing.T) (all []passage) {
	for _, f := range goFiles(t, "cmd", "deploy", "docs", "internal", "pkg", "test", "tools") {
		for _, group := range f.tree.Comments {
			if !directive.MatchString(group.List[0].Text) {
				all = append(all, passage{f.path, f.line(group), group.Text()})
			}
		}
	}
	return all
}

var target = regexp.MustCompile(`\]\([^)]*\)`)

func pages(t *testing.T) (all []passage) {
	for path, page := range markdownPages(t) {
		all = append(all, passage{path, 1, prose(page)})
	}
	return all
}

// prose returns the page without code and addresses; lines keep their numbers.
func prose(page *markdown.Page) string {
	var b strings.Builder
	for _, l := range page.Lines {
		b.WriteString(target.ReplaceAllString(l.Prose(), "]") + "\n")
	}
	return b.String()
}

// messages returns the string literals of the product that hold at least three words, those of struct tags and import
// paths aside.
func messages(t *testing.T) (all []passage) {
	for _, f := range product(t) {
		tags := map[*ast.BasicLit]bool{}
		ast.Inspect(f.tree, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.Field:
				tags[node.Tag] = true
			case *ast.BasicLit:
				if node.Kind.String() == "STRING" && !tags[node] && len(word.FindAllString(node.Value, 3)) == 3 {
					all = append(all, passage{f.path, f.line(node), strings.Trim(node.Value, "`\"")})
				}
			}
			return true
		})
	}
	return all
}

// TestTheMeasureCounts that each habit is found where it stands, and only there.
func TestTheMeasureCounts(t *testing.T) {
	for text, want := range map[string][]int{
		"The log says what it was told.":                {2, 0, 0, 0},
		"Nobody asks. Whoever does, waits.":             {0, 2, 1, 0},
		"What is left is kept. It knows what it is.":    {0, 0, 1, 0},
		"a list\n- What it holds\n":                     {0, 0, 1, 0},
		"Besides, it is read anew; nothing is amiss.":   {0, 0, 0, 3},
		"A whole sentence about a topic and its owner.": {0, 0, 0, 0},
	} {
		got := make([]int, len(habits))
		for i, h := range habits {
			got[i] = len(h.found.FindAllString(text, -1))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	page := "A `said` word\n```sh\nwho told\n```\n[who](who.md) asks\n"
	if got := prose(markdown.Parse(page)); strings.Contains(got, "told") || strings.Contains(got, "said") || strings.Contains(got, ".md") ||
		strings.Count(got, "\n") != strings.Count(page, "\n") {
		t.Errorf("prose: %q", got)
	}
}
