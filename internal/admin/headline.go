package admin

import (
	"fmt"
	"html/template"
	"net/url"
	"strings"
)

// headline is the state of the exporter in a few words, for the top of a page, its title and its icon.
type headline struct {
	Class string // of the style sheet
	Text  string
	sign  string
	shape string // of the icon: not only its color differs
}

var (
	headlineGood = headline{"good", "Ready", "✓", `<circle cx="8" cy="8" r="8" fill="#116329"/><path d="m4 8 3 3 5-6"`}
	headlineWait = headline{"wait", "Ready, with warnings", "!", `<path d="M8 0 16 16H0z" fill="#9a6700"/><path d="M8 5v5m0 2v2"`}
	headlineBad  = headline{"bad", "Not ready", "✗", `<path d="M0 0h16v16H0z" fill="#a40e26"/><path d="m4 4 8 8m0-8-8 8"`}
)

// Headline returns the state as a whole.
func (d *pageData) Headline() headline {
	switch {
	case !d.Ready:
		return headlineBad
	case len(d.Problems) > 0:
		return headlineWait
	}
	return headlineGood
}

// LostIcon is the image while the exporter does not answer.
func (headline) LostIcon() template.URL { return headlineBad.Icon() }

// Icon is an image for the tab of a browser.
func (h headline) Icon() template.URL {
	const image = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">%s fill="none" stroke="#fff" stroke-width="2"/></svg>`
	return template.URL("data:image/svg+xml," + url.PathEscape(fmt.Sprintf(image, h.shape))) //nolint:gosec // it is a constant
}

// Announcement names the state and what is wrong: a text that changes only with these, for screen readers.
func (d *pageData) Announcement() string {
	var names []string
	for _, p := range d.Problems {
		names = append(names, p.Name+" "+string(p.Code))
	}
	text := d.Headline().Text
	if len(names) > 0 {
		text += ": " + strings.Join(names, ", ")
	}
	return text
}

// Title is what a browser shows in its tab.
func (d *pageData) Title() string {
	h := d.Headline()
	title := h.sign + " " + h.Text
	if d.Name != "" {
		title += " · " + d.Name
	}
	return title + " · kubecdc"
}
