package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestCountedErrorsAreReportedAsLoss(t *testing.T) {
	var losses []string
	answer, refused := "", error(nil)
	c := NewCounters(time.Minute, func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(answer)), refused
	}, func(_ context.Context, _ time.Time, reason string) error { losses = append(losses, reason); return nil })
	look := func(start int, webhook, buffered int, want string) {
		t.Helper()
		losses = nil
		answer = fmt.Sprintf("# HELP x y\napiserver_audit_error_total{plugin=\"webhook\"} %d\napiserver_audit_error_total{plugin=\"buffered\"} %d\n"+
			"apiserver_audit_error_totals 9\nprocess_start_time_seconds %d\n", webhook, buffered, start)
		if err := c.readOnce(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(losses, "; "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("start %d, errors %d and %d: losses %q, want %q", start, webhook, buffered, got, want)
		}
	}
	look(1000, 5, 0, "") // lost before the first reading
	look(1000, 5, 0, "")
	look(1000, 5, 3, "lost 3 audit events")
	look(900, 0, 0, "") // another API server, which is older
	look(1000, 5, 3, "")
	look(2000, 0, 0, "was started at 1970-01-01T00:33:20Z")
	look(900, 1, 0, "lost 1 audit events")
	answer = "nothing\n"
	if err := c.readOnce(t.Context(), time.Now()); err == nil {
		t.Error("metrics without a start were read")
	}
	refused = errors.New("forbidden")
	if err := c.readOnce(t.Context(), time.Now()); !errors.Is(err, refused) {
		t.Error(err)
	}
}
