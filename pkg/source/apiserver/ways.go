package apiserver

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Way is a way to read that not every server has. Another one leads to the same end, at a higher cost.
type Way int

// The ways.
const (
	StreamedList Way = iota // KEP-3157; otherwise a list of one object
	Pages                   // otherwise one list of everything
	Bookmarks               // KEP-956; otherwise silence is normal
	wayCount
)

var wayNames = [wayCount]string{"streamed lists", "pages", "bookmarks"}

// relearnAfter is how long a server counts as lacking a way. Not every upgrade of a server shows.
const relearnAfter = time.Hour

// Ways holds what the server of one resource can do, learnt by asking. It is safe for concurrent use.
type Ways struct {
	mu     sync.Mutex
	learnt [wayCount]learnt
}

type learnt struct {
	at      time.Time // zero for a way that was not tried
	lacking string    // why the server lacks it; "" if it has it
}

// Has reports whether a way is to be tried.
func (w *Ways) Has(way Way) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.learnt[way]
	return l.lacking == "" || time.Since(l.at) > relearnAfter
}

// Learn records that the server has a way, or the error for which it counts as lacking it.
func (w *Ways) Learn(way Way, err error) {
	l := learnt{at: time.Now()}
	if err != nil {
		l.lacking = Reason(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learnt[way] = l
}

// Forget forgets everything: the server may be another one now.
func (w *Ways) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learnt = [wayCount]learnt{}
}

// String describes what was learnt; "" if nothing was.
func (w *Ways) String() string { all, _ := w.describe(); return all }

// Lacking describes the ways that the server lacks; "" if it has all that were tried.
func (w *Ways) Lacking() string { _, lacking := w.describe(); return lacking }

func (w *Ways) describe() (all, lacking string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var tried, lacked []string
	for way, l := range w.learnt {
		name := wayNames[way]
		if l.lacking != "" {
			name = fmt.Sprintf("no %s (%s)", name, l.lacking)
			lacked = append(lacked, name)
		}
		if !l.at.IsZero() {
			tried = append(tried, name)
		}
	}
	return strings.Join(tried, ", "), strings.Join(lacked, ", ")
}

// wayTable holds the ways of each resource. It is safe for concurrent use.
type wayTable struct {
	mu      sync.Mutex
	version string // of the server
	ways    map[event.Resource]*Ways
}

// waysOf returns the ways of a resource, which all of its endpoints share.
func (t *wayTable) waysOf(r event.Resource) *Ways {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ways == nil {
		t.ways = map[event.Resource]*Ways{}
	}
	if t.ways[r] == nil {
		t.ways[r] = &Ways{}
	}
	return t.ways[r]
}

// recordServer forgets everything if the server has another version, and what is known of groups that did not answer: their
// servers may be replaced.
func (t *wayTable) recordServer(version string, away map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	replaced := version != "" && t.version != "" && version != t.version
	if version != "" {
		t.version = version
	}
	for r, w := range t.ways {
		if replaced || away[r.Group] {
			w.Forget()
		}
	}
}
