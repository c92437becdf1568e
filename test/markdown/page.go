package markdown

import (
	"fmt"
	"regexp"
	"strings"
)

// Page is one Markdown file.
type Page struct {
	Lines   []Line
	Anchors map[string]bool // of its headings, as GitHub makes them, and those that it sets itself
}

// Line is one line of a page. In a block of code everything is code.
type Line struct {
	Number int // from 1
	Block  bool
	Text   string
}

var (
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	ownAnchor    = regexp.MustCompile(`<a id="([^"]+)"></a>`)
	codeSpan     = regexp.MustCompile("`[^`]*`")
)

// Parse separates the lines of a page.
func Parse(content string) *Page {
	p := &Page{Anchors: map[string]bool{}}
	block, number := false, 0
	for text := range strings.Lines(content) {
		number++
		fence := strings.HasPrefix(strings.TrimSpace(text), "```")
		if fence {
			block = !block
		}
		l := Line{Number: number, Block: block || fence, Text: strings.TrimRight(text, "\n")}
		p.Lines = append(p.Lines, l)
		if heading := strings.TrimLeft(l.Text, "#"); !l.Block && heading != l.Text && strings.HasPrefix(heading, " ") {
			p.addAnchor(heading)
		}
		for _, m := range ownAnchor.FindAllStringSubmatch(l.Prose(), -1) {
			p.Anchors[m[1]] = true
		}
	}
	return p
}

// addAnchor adds the anchor of a heading; of equal headings the later ones are numbered.
func (p *Page) addAnchor(heading string) {
	name := strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
	unique := name
	for i := 1; p.Anchors[unique]; i++ {
		unique = fmt.Sprintf("%s-%d", name, i)
	}
	p.Anchors[unique] = true
}

// Prose returns the line without code.
func (l Line) Prose() string {
	if l.Block {
		return ""
	}
	return codeSpan.ReplaceAllString(l.Text, "")
}

// Code returns the parts of the line that are code.
func (l Line) Code() []string {
	if l.Block {
		return []string{l.Text}
	}
	spans := codeSpan.FindAllString(l.Text, -1)
	for i, s := range spans {
		spans[i] = strings.Trim(s, "`")
	}
	return spans
}
