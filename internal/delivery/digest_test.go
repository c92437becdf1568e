package delivery

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func TestChangesThatAreSentInPartAreLogged(t *testing.T) {
	var log bytes.Buffer
	d := digest{log: slog.New(slog.NewTextHandler(&log, nil))}
	reason := &sinks.RejectedError{Reason: "too large for the topic", TooLarge: true}
	now := time.Now()
	for _, uid := range []string{"u", "v"} {
		c := &event.Change{Type: event.Updated, UID: uid, Name: "web", Resource: event.Resource{Resource: "pods"}, Omitted: []string{"before"}}
		d.addReduced(c, reason)
		c.Omitted = append(c.Omitted, "status")
		d.addReduced(c, reason) // the next step of the same change
	}
	d.write(now)
	d.write(now.Add(time.Second))
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "count=2") || !strings.Contains(text, "core/pods//web") ||
		!strings.Contains(text, "[before status]") || !strings.Contains(text, "too large for the topic") {
		t.Error(text)
	}
}
