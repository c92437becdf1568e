package faults

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestAWebhookThatServesNothingIsNamedSteadily has a webhook that accepts everything answer otherwise from one moment on,
// while objects are created: the exporter gets not ready, since one time, and makes a bounded number of dead letters. How
// soon depends on how fast objects are created: it believes so many rejections first, and tells of them every ten seconds.
func TestAWebhookThatServesNothingIsNamedSteadily(t *testing.T) {
	require.Long(t)
	const during, maxLines, lettersEvery, maxLetters = 45 * time.Second, 6, 10 * time.Second, 100
	s := surround(t)
	for _, status := range []int{http.StatusInternalServerError, http.StatusBadRequest} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			c := s.fixture(t)
			r := c.switchedReceiver()
			r.serve(accept)
			c.sink("webhook", mapping{"url": "http://" + r.address, "timeout": "2s"}, cloudEvents)
			c.start()
			c.create(workload.ConfigMaps, "arrives")
			before := strings.Count(c.exporter.LogTail(), "level=")
			r.serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			created := 0
			look := func(objects int) (line, since string) {
				for range objects {
					c.create(workload.ConfigMaps, fmt.Sprint("waits-", created))
					created++
				}
				line = lineOf(c.page("/readyz?verbose"), "[-]sink/webhook")
				_, since, _ = strings.Cut(line, ". Since ")
				return line, since
			}
			began, first := time.Now(), ""
			c.await("the webhook is named", func() string {
				line, since := look(5)
				if first = since; line == "" {
					return "the exporter is ready"
				}
				return ""
			})
			named := time.Now()
			for time.Since(named) < during {
				if line, since := look(1); line == "" || since != first {
					t.Fatalf("after %v, from %q on, since %q:\n%s", time.Since(named), first, since, c.page("/readyz?verbose"))
				}
				time.Sleep(50 * time.Millisecond) // the rate of the load
			}
			log := c.exporter.LogTail()
			if n := strings.Count(log, "level=") - before; n > maxLines+int(named.Sub(began)/lettersEvery) {
				t.Errorf("%d lines:\n%s", n, log)
			}
			t.Logf("%s\n%s", c.page("/readyz?verbose"), log)
			letters := 0
			if line := lineOf(c.page("/metrics"), `kubecdc_sink_dead_letters_total{sink="webhook"}`); line != "" {
				_, err := fmt.Sscan(strings.Fields(line)[1], &letters)
				c.must(err)
			}
			if letters > maxLetters {
				t.Errorf("%d dead letters", letters)
			}
			r.serve(accept)
			c.await("recovery", func() string { return lineOf(c.page("/readyz?verbose"), "[-]") })
		})
	}
}

// maxFaultLines is how many lines the log has at most of one fault, however long it lasts.
const maxFaultLines = 6

// checkSteady watches the exporter while nothing changes, for as long as KUBECDC_E2E_FAULT asks for in a long proof: it has
// the same conditions since the same times, and few lines of log.
func (c *fixture) checkSteady() {
	c.t.Helper()
	watched, err := time.ParseDuration(cmp.Or(os.Getenv("KUBECDC_E2E_FAULT"), "0s"))
	c.must(err)
	first, err := c.problems()
	c.must(err)
	for began := time.Now(); time.Since(began) < watched; time.Sleep(lookEvery) { // it is the length of the look
		now, err := c.problems()
		c.must(err)
		if a, b := steadyParts(first), steadyParts(now); a != b {
			c.t.Fatalf("after %v:\n%s\nbefore:\n%s", time.Since(began), b, a)
		}
	}
	log, err := os.ReadFile(c.exporter.Log())
	c.must(err)
	if n := strings.Count(string(log), "level=WARN") + strings.Count(string(log), "level=ERROR"); n > maxFaultLines {
		c.t.Errorf("%d lines of one fault", n)
	}
}

// steadyParts are the parts of conditions that stay as long as nothing changes.
func steadyParts(all []problem) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "%s %s since %v, not ready: %v\n", p.Name, p.Code, p.Since, p.Counts)
	}
	return b.String()
}

// lineOf returns the first line that begins like this.
func lineOf(text, prefix string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
