package admin

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"time"
)

//go:embed page.html
var pageSource string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"size": size, "ago": ago}).Parse(pageSource))

// pageData is what page.html shows.
type pageData struct {
	Version string
	Now     time.Time
	Failed  []pageCheck
	Snapshot
	Backlog map[string]uint64        // by sink
	Lag     map[string]time.Duration // by sink
}

type pageCheck struct{ Name, Reason string }

// page shows the snapshot as HTML. It has no script and loads nothing; the template escapes every value.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	d := pageData{Version: s.options.Version, Now: time.Now().UTC(), Snapshot: s.options.Snapshot(),
		Backlog: map[string]uint64{}, Lag: map[string]time.Duration{}}
	for _, c := range d.complaints() {
		if c.reason != "" {
			d.Failed = append(d.Failed, pageCheck{c.name, oneLine(c.reason)})
		}
	}
	for _, k := range d.Sinks {
		d.Backlog[k.Name], d.Lag[k.Name] = d.Journal.backlog(k), k.lag(d.Now).Round(time.Millisecond)
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, d); err != nil {
		s.options.Logger.Error("the status page cannot be written", "error", err)
		http.Error(w, "the status page cannot be written; see the log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(b.Bytes()) // a reader that went away is nobody's problem
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
