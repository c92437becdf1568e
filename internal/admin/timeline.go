package admin

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"
)

// Timelines answer what happened, out of a history. They show values of objects, which nothing else here does.
type Timelines struct {
	// Ask returns an error that wraps ErrQuestion if that is wrong. It may go on after its context has ended, which nothing
	// waits for; it is called once at a time.
	Ask func(context.Context, Question) (Timeline, error)
	// Password is what a browser has to send, with any user name.
	Password string
}

// Question is about an object, a type or a namespace, as kubectl names them, and how far it goes back.
type Question struct{ Sink, Resource, Namespace, Name, Since string }

// Timeline is the answer to a question.
type Timeline struct {
	Entries []TimelineEntry // the newest first
	Older   int             // how many more there are
	Command string          // that shows these
}

// TimelineEntry is a change, or an interval of which something is not known.
type TimelineEntry struct {
	Time    string
	Type    string
	Object  string
	Author  string // "" if there is none
	User    bool   // Author is authenticated
	Notes   []string
	Changes []string // from what to what
}

// ErrQuestion is wrapped by errors that their question causes.
var ErrQuestion = errors.New("the question cannot be answered")

const (
	askWithin    = 10 * time.Second // for an answer, and for the turn to ask
	defaultSince = "1h"
)

type timelinePage struct {
	Version string
	Question
	*Timeline        // nil if nothing was asked, or there is no answer
	Error     string // why not
}

// timelineHandler answers questions to a client that has the password, and that has come by this machine, as "kubectl
// port-forward" does: over a network values would be in clear.
type timelineHandler struct {
	*Timelines
	version string
	log     *slog.Logger
	asking  chan struct{} // full while a question is answered
}

// ServeHTTP implements [http.Handler].
func (t *timelineHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	_, given, _ := r.BasicAuth()
	switch {
	case err != nil || !from.Addr().Unmap().IsLoopback():
		http.Error(w, "the timeline shows values of objects, and not over a network in clear: use kubectl port-forward, or this machine", http.StatusForbidden)
		return
	case subtle.ConstantTimeCompare([]byte(given), []byte(t.Password)) != 1:
		w.Header().Set("WWW-Authenticate", `Basic realm="timeline", charset="UTF-8"`)
		http.Error(w, "the timeline shows values of objects, and needs a password: 'exporter history page' prints its address with it", http.StatusUnauthorized)
		return
	}
	query := r.URL.Query()
	p, code := timelinePage{Version: t.version, Question: Question{
		Sink: query.Get("sink"), Resource: query.Get("resource"), Namespace: query.Get("namespace"), Name: query.Get("name"), Since: query.Get("since"),
	}}, http.StatusOK
	if p.Since == "" {
		p.Since = defaultSince
	}
	if len(query) > 0 {
		if p.Timeline, err = t.askOnce(r.Context(), p.Question); err != nil {
			p.Timeline, p.Error, code = nil, err.Error(), http.StatusServiceUnavailable
			if errors.Is(err, ErrQuestion) {
				code = http.StatusBadRequest
			}
		}
	}
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, "timeline", p); err != nil {
		t.log.Error("the timeline cannot be written", "error", err)
		http.Error(w, "the timeline cannot be written; see the log", http.StatusInternalServerError)
		return
	}
	setHeaders(w, "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // the client may have disconnected
}

// askOnce has one question answered at a time, each within a time. A place that hangs has one goroutine wait for it.
func (t *timelineHandler) askOnce(ctx context.Context, q Question) (*Timeline, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	select {
	case t.asking <- struct{}{}:
	case <-ctx.Done():
		return nil, errors.New("other questions are being answered: ask again in a while")
	}
	type result struct {
		Timeline
		error
	}
	answered := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil { // a damaged file must not end delivery
				answered <- result{error: fmt.Errorf("the history cannot be read: %v", p)}
			}
			<-t.asking
		}()
		answer, err := t.Ask(ctx, q)
		answered <- result{answer, err}
	}()
	select {
	case a := <-answered:
		if !errors.Is(a.error, context.DeadlineExceeded) {
			return &a.Timeline, a.error
		}
	case <-ctx.Done():
	}
	return nil, errors.New("there is no answer within " + askWithin.String() + ": ask for less, or 'exporter history log', which takes its time")
}
