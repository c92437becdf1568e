package admin

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// static holds the templates, the two files that the pages load, which load nothing else, and the runbooks.
//
//go:embed page.html status.js status.css runbooks.html
var static embed.FS

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"size": FormatBytes, "ago": formatAge, "since": formatSince, "rate": FormatRate, "span": formatSeconds, "sparkline": newSparkline, "number": formatNumber, "plural": formatCount,
	"share": func(part, bound int64) float64 { return float64(min(part, bound)) / float64(max(bound, 1)) }, // from 0 to 1
}).ParseFS(static, "page.html"))

// contentSecurityPolicy lets the page load its own two files and nothing else.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

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

type pageKey struct{ view, name string }

type pageData struct {
	*Overview
	View, Name   string
	Scope        string // the name of the resource without its selectors, "" on other pages
	Snapshot     *Snapshot
	Resource     *source.Status // of viewResource
	ResourceView *ResourceView
	Own          []condition.Report // of the resource or sink
	Sink         *SinkStatus        // of viewSink
	SinkView     *SinkView
	Letters      []DeadLetter
	LettersError string
}

type rows struct {
	Now       time.Time
	Resources []ResourceView
}

// busiestShown is how many live resources are shown at once, if they are busy.
const busiestShown = 12

// countProminent counts the resources to show at once: what is not live, and the busiest of the others. Few are all shown.
func (o *Overview) countProminent() int {
	if len(o.Resources) <= busiestShown {
		return len(o.Resources)
	}
	n := slices.IndexFunc(o.Resources, func(r ResourceView) bool { return !r.Sick && r.Rate == 0 })
	if n < 0 {
		n = len(o.Resources)
	}
	return min(n, o.Sick+busiestShown)
}

// Unready reports whether a resource makes the exporter not ready.
func (d *pageData) Unready() bool {
	return slices.ContainsFunc(d.Resources, func(r ResourceView) bool { return r.NotReady })
}

// Ends sums the sinks up; Failing counts those that are not well.
func (d *pageData) Ends() (sum SinkView) {
	for _, k := range d.Sinks {
		sum.Rate, sum.Backlog, sum.LagSeconds = sum.Rate+k.Rate, sum.Backlog+k.Backlog, max(sum.LagSeconds, k.LagSeconds)
		if sum.NotReady = sum.NotReady || k.NotReady; k.Sick {
			sum.Failing++
		}
	}
	return sum
}

// HasHistory reports whether there is a sink that timelines are made of.
func (d *pageData) HasHistory() bool {
	return slices.ContainsFunc(d.Snapshot.Sinks, func(k SinkStatus) bool { return k.Kind == "history" })
}

// Loud are the resources to show at once.
func (d *pageData) Loud() rows { return rows{d.Now, d.Resources[:d.countProminent()]} }

// Quiet are the others; nil where there are none.
func (d *pageData) Quiet() *rows {
	quiet := d.Resources[d.countProminent():]
	if len(quiet) == 0 {
		return nil
	}
	return &rows{d.Now, quiet}
}

// collectPageData collects what a place shows; false where there is no such place.
func (s *Server) collectPageData(f *frame, p pageKey) (*pageData, bool) {
	if !slices.Contains([]string{viewOverview, viewResource, viewSink}, p.view) {
		return nil, false
	}
	d := &pageData{Overview: f.buildOverview(s.options.Version), View: p.view, Name: p.name, Snapshot: &f.Snapshot}
	switch p.view {
	case viewResource:
		i := slices.IndexFunc(f.Resources, func(r source.Status) bool { return r.Scope == p.name })
		if i < 0 {
			return nil, false
		}
		d.Resource = &f.Resources[i]
		d.Own = condition.Reports([]condition.Status{d.Resource.Condition, d.Resource.Reread, d.Resource.Listing}, d.Now)
		v := f.resourceView(*d.Resource)
		d.ResourceView = &v
		d.Scope, _, _ = strings.Cut(p.name, ";")
	case viewSink:
		i := slices.IndexFunc(f.Sinks, func(k SinkStatus) bool { return k.Name == p.name })
		if i < 0 {
			return nil, false
		}
		d.Sink = &f.Sinks[i]
		d.Own = condition.Reports(f.conditionsOf("sink/"+p.name), d.Now)
		v := f.sinkView(*d.Sink)
		d.SinkView = &v
		if s.options.DeadLetters != nil {
			var err error
			if d.Letters, err = s.options.DeadLetters(p.name, deadLettersShown); err != nil {
				d.LettersError = strings.Join(strings.Fields(err.Error()), " ")
			}
		}
	}
	return d, true
}

// renderTemplate writes a template for a place; nil where there is no such place.
func (s *Server) renderTemplate(f *frame, p pageKey, name string) ([]byte, error) {
	d, found := s.collectPageData(f, p)
	if !found {
		return nil, nil
	}
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, name, d); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// renderStatus is the part of a page that changes, as all viewers of a frame see it; nil where there is no such place any
// more.
func (s *Server) renderStatus(f *frame, p pageKey) ([]byte, error) {
	if b, ok := f.rendered.Load(p); ok {
		return b.([]byte), nil
	}
	b, err := s.renderTemplate(f, p, "status")
	if err == nil && b != nil { // places that exist are few
		f.rendered.Store(p, b)
	}
	return b, err
}

func (s *Server) handlePage(view string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		of := pageKey{view: view}
		if view != viewOverview {
			of.name = r.URL.Query().Get("name")
		}
		b, err := s.renderTemplate(s.currentFrame(), of, "page")
		switch {
		case err != nil:
			s.options.Logger.Error("the status page cannot be written", "error", err)
			http.Error(w, "the status page cannot be written; see the log", http.StatusInternalServerError)
			return
		case b == nil:
			http.Error(w, "there is no such "+view+" now", http.StatusNotFound)
			return
		}
		setHeaders(w, "text/html; charset=utf-8")
		_, _ = w.Write(b) // the client may have disconnected
	}
}

// handleOverview answers with what the page shows, for programs.
func (s *Server) handleOverview(w http.ResponseWriter, _ *http.Request) {
	b, err := json.Marshal(s.currentFrame().buildOverview(s.options.Version))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	setHeaders(w, "application/json")
	_, _ = w.Write(append(b, '\n'))
}

func (s *Server) handleFile(name, contentType string) http.HandlerFunc {
	b, err := static.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		setHeaders(w, contentType)
		_, _ = w.Write(b)
	}
}

// setHeaders sets the headers that every answer has.
func setHeaders(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy", contentSecurityPolicy)
}

// FormatBytes writes bytes for people: "1.5 MiB".
func FormatBytes(n int64) string {
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

// formatAge writes how long before now t was: "12s", or "never".
func formatAge(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return max(now.Sub(t), 0).Round(time.Second).String()
}

// formatSince writes when t was: "12s ago", or "never".
func formatSince(now, t time.Time) string {
	if t.IsZero() {
		return formatAge(now, t)
	}
	return formatAge(now, t) + " ago"
}

// formatSeconds writes seconds for people: "0s", "0.4s", "2m5s".
func formatSeconds(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d == 0 {
		return "0s"
	}
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// FormatRate writes how often a second: "0", "0.3", "12", "1,234".
func FormatRate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0"
	case perSecond < 10:
		return fmt.Sprintf("%.1f", perSecond)
	}
	return formatNumber(perSecond)
}

// formatCount counts things: "1 lane", "1,200 lanes".
func formatCount(n any, what string) string {
	text := formatNumber(n)
	if text == "1" {
		return text + " " + what
	}
	return text + " " + what + "s"
}

// formatNumber writes a whole number with separators.
func formatNumber(v any) string {
	text := fmt.Sprint(v)
	if f, ok := v.(float64); ok {
		text = fmt.Sprintf("%.0f", f)
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
