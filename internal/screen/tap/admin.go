package tap

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/screen/field"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
)

// AdminOptions select what is read from a running exporter.
type AdminOptions struct {
	Address string                     // of its admin server: "127.0.0.1:8080"
	Takes   func(c *event.Change) bool // which changes are shown; nil takes all
	Filter  string                     // CEL over change alone; "" takes all
	Notes   io.Writer                  // gets what is not a change
}

const (
	maxFact        = 64 << 10 // bytes of one line that an exporter sends
	reconnectAfter = time.Second
	answerWithin   = 10 * time.Second
)

// Admin shows the changes that a running exporter observes, without bodies, until ctx ends, which is no error, or the
// printer has enough. An exporter that goes away is waited for; one that is not there at first is an error.
func Admin(ctx context.Context, o AdminOptions, p *Printer) error {
	filter, err := filter.NewFactsFilter(o.Filter)
	if err != nil {
		return exit.With(exit.Usage, fmt.Errorf("--filter: %w", err))
	}
	changes := make(chan shown, queued)
	r := &changeReader{options: o, filter: filter, changes: changes, client: &http.Client{Transport: &http.Transport{ResponseHeaderTimeout: answerWithin}}}
	defer r.client.CloseIdleConnections()
	return p.printWhile(ctx, changes, r.readUntilCanceled)
}

// changeReader reads what an admin server streams.
type changeReader struct {
	options AdminOptions
	filter  *filter.FactsFilter
	changes chan<- shown
	client  *http.Client
}

// readUntilCanceled reads until ctx ends, over as many connections as it takes.
func (f *changeReader) readUntilCanceled(ctx context.Context) error {
	connected := func() {
		f.printNote("watching the exporter at %s, which shows facts and no values; ^C ends", f.options.Address)
	}
	reached := false
	away := ""
	for ctx.Err() == nil {
		err := f.readConnection(ctx, func() {
			connected()
			reached, away = true, ""
			connected = func() { f.printNote("the exporter is back; what changed meanwhile is not shown") }
		})
		switch {
		case ctx.Err() != nil:
		case !reached:
			return exit.With(exit.Environment, fmt.Errorf("no exporter to watch: %w", err))
		case away == "":
			away = err.Error()
			f.printNote("! the exporter is away, trying again: %s", away)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectAfter):
		}
	}
	return nil
}

func (f *changeReader) printNote(format string, args ...any) {
	fmt.Fprintln(f.options.Notes, field.EscapeUnprintable(fmt.Sprintf(format, args...)))
}

// readConnection reads one connection to its end, which is always an error. connected is called once there is one.
func (f *changeReader) readConnection(ctx context.Context, connected func()) error {
	u := url.URL{Scheme: "http", Host: f.options.Address, Path: "/changes"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	answer, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 200)) // what cannot be read is not shown
		return fmt.Errorf("%s answers %s: %s", &u, answer.Status, strings.TrimSpace(string(text)))
	}
	connected()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, maxFact)
	name := ""
	for lines.Scan() {
		member, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case member == "": // the end of an event, or a comment
			name = ""
		case member == "event":
			name = value
		case member == "data" && name == "missed":
			f.printNote("! %s changes came too fast and are not shown", value)
		case member == "data":
			if err := f.showChange(ctx, value); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("it closed the connection")
}

func (f *changeReader) showChange(ctx context.Context, text string) error {
	var facts changeFacts
	if err := json.Unmarshal([]byte(text), &facts); err != nil {
		return fmt.Errorf("what it sends is no change: %w", err)
	}
	c := facts.toChange()
	if f.options.Takes != nil && !f.options.Takes(c) {
		return nil
	}
	if yes, err := f.filter.Matches(c); err == nil && !yes { // as in a rule, what it fails on is shown
		return nil
	}
	select {
	case f.changes <- shown{c, []byte(text)}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// changeFacts are those members of the native format that are shown.
type changeFacts struct {
	Type              event.Type      `json:"type"`
	Cluster           string          `json:"cluster"`
	Group             string          `json:"group"`
	Version           string          `json:"version"`
	Resource          string          `json:"resource"`
	Kind              string          `json:"kind"`
	Namespace         string          `json:"namespace"`
	Name              string          `json:"name"`
	UID               string          `json:"uid"`
	ObservedAt        time.Time       `json:"observedAt"`
	Coalesced         bool            `json:"coalesced"`
	FinalStateUnknown bool            `json:"finalStateUnknown"`
	Class             event.Class     `json:"class"`
	Changed           json.RawMessage `json:"changed"`
	Actor             *event.Actor    `json:"actor"`
	Gap               *event.GapInfo  `json:"gap"`
}

func (f *changeFacts) toChange() *event.Change {
	return &event.Change{
		Type: f.Type, Cluster: f.Cluster, Resource: event.Resource{Group: f.Group, Version: f.Version, Resource: f.Resource, Kind: f.Kind},
		Namespace: f.Namespace, Name: f.Name, UID: f.UID, ObservedAt: f.ObservedAt, Coalesced: f.Coalesced,
		FinalStateUnknown: f.FinalStateUnknown, Class: f.Class, Changed: f.Changed, Actor: f.Actor, Gap: f.Gap,
	}
}
