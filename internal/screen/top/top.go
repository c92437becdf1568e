package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/exit"
)

const (
	refreshEvery = 2 * time.Second // as often as an exporter has something new
	answerWithin = 5 * time.Second
	maxAnswer    = 16 << 20 // bytes
)

// Options select what is shown, and where.
type Options struct {
	Address string                     // of the exporter's admin server: "127.0.0.1:8080"
	Out     io.Writer                  // a terminal, or what takes one picture
	Size    func() (width, height int) // of the terminal, asked for every picture
	Once    bool                       // draw one picture without taking the screen
	Color   bool
}

// Sequences that take the screen and give it back: the terminal's second screen, without a cursor.
const (
	takeScreen = "\x1b[?1049h\x1b[?25l"
	giveScreen = "\x1b[?25h\x1b[?1049l"
	home       = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

// Run draws until ctx ends, which is no error. An exporter that goes away is waited for, with a line on the screen; one that
// is not there at first is an error, and with Once one that is not ready. The terminal is left as it was.
func Run(ctx context.Context, o Options) error {
	client := &http.Client{Timeout: answerWithin, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	seen, err := fetchOverview(ctx, client, o.Address)
	if err != nil {
		return exit.With(exit.Environment, fmt.Errorf("no exporter to look at: %w", err))
	}
	if o.Once {
		width, height := o.Size()
		if _, err := fmt.Fprintln(o.Out, strings.Join(drawScreen(seen, width, height, o.Color), "\n")); err != nil {
			return err
		}
		if !seen.Ready {
			return exit.With(exit.Environment, fmt.Errorf("the exporter at %s is not ready", o.Address))
		}
		return nil
	}
	fmt.Fprint(o.Out, takeScreen)
	defer fmt.Fprint(o.Out, giveScreen)
	ticks := time.NewTicker(refreshEvery)
	defer ticks.Stop()
	for away := ""; ; {
		if err := showOverview(o, seen, away); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		fresh, err := fetchOverview(ctx, client, o.Address)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			away = err.Error()
		default:
			seen, away = fresh, ""
		}
	}
}

// showOverview draws one picture over the last one.
func showOverview(o Options, seen *admin.Overview, away string) error {
	width, height := o.Size()
	lines := drawScreen(seen, width, height, o.Color)
	if away != "" {
		p := &page{width: width, color: o.Color}
		p.addLine(span{red + bold, "✗ the exporter does not answer; this is from before: "}, span{"", away})
		lines = append(p.lines, lines...)
	}
	lines = lines[:min(len(lines), height)]
	_, err := io.WriteString(o.Out, home+strings.Join(lines, clearLine+"\r\n")+clearLine+clearBelow)
	return err
}

// fetchOverview asks an exporter how it is.
func fetchOverview(ctx context.Context, client *http.Client, address string) (*admin.Overview, error) {
	u := url.URL{Scheme: "http", Host: address, Path: "/status.json"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", &u, answer.Status)
	}
	var seen admin.Overview
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&seen); err != nil {
		return nil, fmt.Errorf("%s does not answer as an exporter does: %w", &u, err)
	}
	return &seen, nil
}
