package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/history"
	sink "github.com/kubecdc/kubecdc/pkg/sinks/history"
)

// timelineEntries bounds the entries on a page.
const timelineEntries = 200

// TimelineFile returns the file with the address of the timeline of an exporter that runs, and its password. It is for
// readers of the journal's directory, which has the same values.
func TimelineFile(cfg *config.Config) string { return filepath.Join(cfg.Journal.Dir, "timeline.url") }

// offerTimeline writes the address of the timeline, with its password, if there is a history.
func (a *app) offerTimeline(cfg *config.Config) {
	if a.adminTask == nil || !slices.ContainsFunc(cfg.Sinks, func(s config.Sink) bool { return s.History != nil }) {
		return
	}
	_, port, _ := net.SplitHostPort(a.adminAddress())
	address := fmt.Sprintf("http://kubecdc:%s@localhost:%s/history\n", a.timelines.Password, port)
	if err := os.WriteFile(TimelineFile(cfg), []byte(address), 0o600); err != nil {
		a.log.Warn("the timeline of the status page cannot be opened; everything else works", "error", err)
	}
}

// askTimeline answers a question of the status page as "exporter history log" does.
func (a *app) askTimeline(ctx context.Context, q admin.Question) (t admin.Timeline, err error) {
	cfg := a.activeConfig()
	i := slices.IndexFunc(cfg.Sinks, func(s config.Sink) bool { return s.History != nil && (q.Sink == "" || q.Sink == s.Name) })
	if i < 0 {
		return t, questionError{errors.New("there is no such sink with a history")}
	}
	since, err := history.ParseMoment(q.Since, time.Now())
	if err != nil {
		return t, questionError{err}
	}
	t, err = answerFrom(ctx, *cfg.Sinks[i].History, q, since)
	if code, _ := exit.CodeOf(err); code == exit.Usage {
		err = questionError{err}
	} else if err != nil {
		err = fmt.Errorf("the history cannot be read; see whether it is written on the page of the sink %s, and read it elsewhere with "+
			"'exporter history log --dir': %w", cfg.Sinks[i].Name, a.secrets.maskError(err))
	}
	return t, err
}

func answerFrom(ctx context.Context, where sink.Config, q admin.Question, since history.Moment) (t admin.Timeline, err error) {
	in, err := where.Store()
	if err != nil {
		return t, err
	}
	h, err := history.OpenStore(in)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	var args []string
	if q.Resource != "" || q.Name != "" {
		args = []string{q.Resource, q.Name}[:1+min(len(q.Name), 1)]
	}
	scope, err := history.ParseScope(ctx, h, args, q.Namespace)
	if err != nil {
		return t, err
	}
	lines, older, err := h.Timeline(ctx, history.LogOptions{Scope: scope, Since: since}, timelineEntries)
	for _, l := range lines {
		t.Entries = append(t.Entries, admin.TimelineEntry(l))
	}
	command := append([]string{"exporter", "history", "log"}, args...)
	if q.Namespace != "" {
		command = append(command, "-n", q.Namespace)
	}
	command = append(command, "--since", q.Since)
	if older > 0 {
		command = append(command, "--until", lines[len(lines)-1].Time)
	}
	t.Older, t.Command = older, shellWords(append(command, "--dir", where.Where()))
	return t, err
}

// questionError is an error that is [admin.ErrQuestion].
type questionError struct{ error }

func (questionError) Is(target error) bool { return target == admin.ErrQuestion }

var plainWord = regexp.MustCompile(`^[-\w./:+,]+$`)

// shellWords writes a command so that a shell takes each word as it is.
func shellWords(words []string) string {
	var quoted []string
	for _, w := range words {
		if !plainWord.MatchString(w) {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		quoted = append(quoted, w)
	}
	return strings.Join(quoted, " ")
}
