package admin

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"
)

// static holds the templates and the two files that the page loads. It loads nothing else.
//
//go:embed page.html status.js status.css
var static embed.FS

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"size": size, "ago": ago, "since": since, "rate": rate, "span": span, "spark": spark, "moving": moving, "number": number, "plural": plural,
}).ParseFS(static, "page.html"))

// contentSecurityPolicy lets the page load its own two files and nothing else.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// deadLettersShown bounds the dead letters of one sink on a page.
const deadLettersShown = 20

// DeadLetter is a change that a sink has given up on, as the page shows it.
type DeadLetter struct {
	Offset   uint64 // in the journal
	Time     time.Time
	Type     string
	Resource string
	Object   string // "namespace/name"
	Reason   string // in the words of the destination, one line
}

// The views of the page, which are the names of their templates.
const (
	viewOverview = "overview"
	viewResource = "resource"
	viewSink     = "sink"
)

// place says which page is meant.
type place struct{ view, name string }

// title is what a browser shows in its tab.
func (p place) title() string {
	if p.name != "" {
		return p.name + " · kubecdc"
	}
	return "kubecdc"
}

// pageData is what the templates show.
type pageData struct {
	*Overview
	Title, View, Name string
	Scope             string // the name of the resource without its selectors, "" on other pages
	Snapshot          *Snapshot
	Resource          *ResourceStatus // of viewResource
	ResourceView      *ResourceView
	Sink              *SinkStatus // of viewSink
	SinkView          *SinkView
	Letters           []DeadLetter
	LettersError      string
}

// rows are resources in a table.
type rows struct {
	Now       time.Time
	Resources []ResourceView
}

// busiestShown is how many live resources are shown at once, if they are busy.
const busiestShown = 12

// loud counts the resources to show at once: what is not live, and the busiest of the others. Few are all shown.
func (o *Overview) loud() int {
	if len(o.Resources) <= busiestShown {
		return len(o.Resources)
	}
	n := slices.IndexFunc(o.Resources, func(r ResourceView) bool { return !r.Sick && r.Rate == 0 })
	if n < 0 {
		n = len(o.Resources)
	}
	return min(n, o.Sick+busiestShown)
}

// Unready says whether a resource makes the exporter not ready.
func (d *pageData) Unready() bool {
	return slices.ContainsFunc(d.Resources, func(r ResourceView) bool { return r.NotReady })
}

// Loud are the resources to show at once.
func (d *pageData) Loud() rows { return rows{d.Now, d.Resources[:d.loud()]} }

// Quiet are the others; nil where there are none.
func (d *pageData) Quiet() *rows {
	quiet := d.Resources[d.loud():]
	if len(quiet) == 0 {
		return nil
	}
	return &rows{d.Now, quiet}
}

// data collects what a place shows; false where there is no such place.
func (s *Server) data(f *frame, p place) (*pageData, bool) {
	if !slices.Contains([]string{viewOverview, viewResource, viewSink}, p.view) {
		return nil, false
	}
	d := &pageData{Overview: f.overview(s.options.Version), Title: p.title(), View: p.view, Name: p.name, Snapshot: &f.Snapshot}
	switch p.view {
	case viewResource:
		i := slices.IndexFunc(f.Resources, func(r ResourceStatus) bool { return r.Name == p.name })
		if i < 0 {
			return nil, false
		}
		d.Resource = &f.Resources[i]
		v := f.resource(*d.Resource)
		d.ResourceView = &v
		d.Scope, _, _ = strings.Cut(p.name, ";")
	case viewSink:
		i := slices.IndexFunc(f.Sinks, func(k SinkStatus) bool { return k.Name == p.name })
		if i < 0 {
			return nil, false
		}
		d.Sink = &f.Sinks[i]
		v := f.sink(*d.Sink)
		d.SinkView = &v
		if s.options.DeadLetters != nil {
			var err error
			if d.Letters, err = s.options.DeadLetters(p.name, deadLettersShown); err != nil {
				d.LettersError = oneLine(err.Error())
			}
		}
	}
	return d, true
}

// render writes a template for a place; nil where there is no such place.
func (s *Server) render(f *frame, p place, name string) ([]byte, error) {
	d, found := s.data(f, p)
	if !found {
		return nil, nil
	}
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, name, d); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// status is the part of a page that changes, as all viewers of a frame see it; nil where there is no such place any more.
func (s *Server) status(f *frame, p place) ([]byte, error) {
	if b, ok := f.rendered.Load(p); ok {
		return b.([]byte), nil
	}
	b, err := s.render(f, p, "status")
	if err == nil && b != nil { // places that exist are few
		f.rendered.Store(p, b)
	}
	return b, err
}

// page answers with one view of the status page.
func (s *Server) page(view string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := s.render(s.frame(), place{view, r.URL.Query().Get("name")}, "page")
		switch {
		case err != nil:
			s.options.Logger.Error("the status page cannot be written", "error", err)
			http.Error(w, "the status page cannot be written; see the log", http.StatusInternalServerError)
			return
		case b == nil:
			http.Error(w, "there is no such "+view+" now", http.StatusNotFound)
			return
		}
		secure(w, "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", contentSecurityPolicy)
		_, _ = w.Write(b) // a reader that went away is nobody's problem
	}
}

// overview answers with what the page shows, for programs.
func (s *Server) overview(w http.ResponseWriter, _ *http.Request) {
	b, err := json.Marshal(s.frame().overview(s.options.Version))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	secure(w, "application/json")
	_, _ = w.Write(append(b, '\n'))
}

// file answers with an embedded file.
func (s *Server) file(name, contentType string) http.HandlerFunc {
	b, err := static.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		secure(w, contentType)
		_, _ = w.Write(b)
	}
}

// secure sets the headers that every answer has.
func secure(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
}

// size writes bytes for people: "1.5 MiB".
func size(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/step, 0
	for value >= step && unit < 4 {
		value /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[unit])
}

// ago writes how long before now t was: "12s", or "never".
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return max(now.Sub(t), 0).Round(time.Second).String()
}

// since writes when t was: "12s ago", or "never".
func since(now, t time.Time) string {
	if t.IsZero() {
		return ago(now, t)
	}
	return ago(now, t) + " ago"
}

// span writes seconds for people: "0s", "0.4s", "2m5s".
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d == 0 {
		return "0s"
	}
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// rate writes how often a second: "0", "0.3", "12", "1,234".
func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0"
	case perSecond < 10:
		return fmt.Sprintf("%.1f", perSecond)
	}
	return number(perSecond)
}

// plural counts things: "1 lane", "1,200 lanes".
func plural(n any, what string) string {
	text := number(n)
	if text == "1" {
		return text + " " + what
	}
	return text + " " + what + "s"
}

// number writes a whole number with separators.
func number(v any) string {
	text := fmt.Sprint(v)
	if f, ok := v.(float64); ok {
		text = fmt.Sprintf("%.0f", f)
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// moving are rates of which not all are 0, and nil else: a line that says nothing is not drawn.
func moving(points []float64) []float64 {
	if !slices.ContainsFunc(points, func(p float64) bool { return p > 0 }) {
		return nil
	}
	return points
}

// The size of a sparkline, in units of its own.
const sparkWidth, sparkHeight = 120, 24

// spark writes rates as the points of a line that ends at the right.
func spark(points []float64) string {
	top := slices.Max(append([]float64{0}, points...))
	var b strings.Builder
	for i, p := range points {
		x := sparkWidth - float64(len(points)-1-i)*sparkWidth/(samplesKept-1)
		fmt.Fprintf(&b, "%.1f,%.1f ", x, sparkHeight-1-p/cmp.Or(top, 1)*(sparkHeight-2))
	}
	return strings.TrimSuffix(b.String(), " ")
}
