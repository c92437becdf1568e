package delivery

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestChangesThatAreDeliveredInPartAreLogged(t *testing.T) {
	var log bytes.Buffer
	d := digest{log: slog.New(slog.NewTextHandler(&log, nil))}
	d.addTooLarge(errors.New("too large for the topic"))
	now, last := time.Now(), inPart{"core/pods//web", []string{"before", "status"}}
	d.write(now, 0, inPart{}) // tried, and not delivered so far
	for _, after := range []time.Duration{0, time.Second, digestEvery} {
		d.write(now.Add(after), 2, last)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "count=2") || !strings.Contains(text, "core/pods//web") ||
		!strings.Contains(text, "[before status]") || !strings.Contains(text, "too large for the topic") {
		t.Error(text)
	}
}
