package delivery

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestTruncatedChangesAreLogged(t *testing.T) {
	var log bytes.Buffer
	d := logDigest{log: slog.New(slog.NewTextHandler(&log, nil))}
	change := &event.Change{Resource: event.Resource{Resource: "pods"}, Name: "web", Omitted: []string{"before", "status"}}
	d.addTruncated(change, errors.New("too large for the topic"))
	now := time.Now()
	d.writeIfDue(now, 0) // tried, and not delivered so far
	for _, after := range []time.Duration{0, time.Second, digestInterval} {
		d.writeIfDue(now.Add(after), 2)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "count=2") || !strings.Contains(text, "core/pods//web") ||
		!strings.Contains(text, "[before status]") || !strings.Contains(text, "too large for the topic") {
		t.Error(text)
	}
}
