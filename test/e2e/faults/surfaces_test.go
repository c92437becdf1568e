package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// problem is one condition as the status page has it.
type problem struct {
	Name, Reason, Code, Cause, Effect, Remedy string
	Counts                                    bool
	Since                                     time.Time
	Deadline                                  *time.Time
}

var (
	readyzLine = regexp.MustCompile(`(?m)^\[[-!]\]\S+ (?:\([^)]*\) )?(\w+): .*\. Effect: .+\. Remedy: .+\.`)
	seriesLine = regexp.MustCompile(`(?m)^kubecdc_condition\{code="(\w+)",`)
	topLine    = regexp.MustCompile(`(?m)^[✗!] \S+(?: \([^)]*\))?  (\w+)`)
)

// codesIn returns what an expression finds in a text, sorted.
func codesIn(text string, expr *regexp.Regexp) []string {
	codes := []string{}
	for _, m := range expr.FindAllStringSubmatch(text, -1) {
		codes = append(codes, m[1])
	}
	slices.Sort(codes)
	return codes
}

// awaitConditions waits until every surface has exactly these conditions: /readyz with effect and remedy, the metrics, what
// the status page shows, exporter top, and a line of the log, which is a warning at least where history gets lost.
func (c *fixture) awaitConditions(want []string) {
	c.t.Helper()
	c.await("every surface", func() string {
		if got := codesIn(c.page("/readyz?verbose"), readyzLine); !slices.Equal(got, want) {
			return fmt.Sprintf("/readyz has %q, want %q:\n%s", got, want, c.page("/readyz?verbose"))
		}
		if strings.Contains(c.page("/readyz?verbose"), "] ok") {
			return "/readyz has a line without a name"
		}
		if got := codesIn(c.page("/metrics"), seriesLine); !slices.Equal(got, want) {
			return fmt.Sprintf("the metrics have %q, want %q", got, want)
		}
		_, out := c.command("top", "--once", "--address", c.exporter.Address())
		if got := codesIn(out, topLine); !slices.Equal(got, want) {
			return fmt.Sprintf("top has %q, want %q:\n%s", got, want, out)
		}
		problems, err := c.problems()
		if err != nil {
			return err.Error()
		}
		log, err := os.ReadFile(c.exporter.Log())
		c.must(err)
		got := []string{}
		for _, p := range problems {
			got = append(got, p.Code)
			if p.Remedy == "" || p.Cause == "" || p.Effect == "" {
				return fmt.Sprintf("the status page lacks a part: %+v", p)
			}
			line := lineWith(string(log), "code="+p.Code+" ")
			if line == "" {
				return "the log has no line with code=" + p.Code
			}
			if p.Deadline != nil && !strings.Contains(line, "level=WARN") && !strings.Contains(line, "level=ERROR") {
				return "history gets lost, and the log has " + line
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("the status page has %q, want %q", got, want)
		}
		return ""
	})
}

// problems are what the status page has.
func (c *fixture) problems() ([]problem, error) {
	var status struct{ Problems []problem }
	err := json.Unmarshal([]byte(c.page("/status.json")), &status)
	return status.Problems, err
}

// lineWith returns the last line of a text with another text in it.
func lineWith(text, with string) (found string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, with) {
			found = line
		}
	}
	return found
}

// awaitDeadline waits until it is reported how much time is left before history gets lost.
func (c *fixture) awaitDeadline() {
	c.t.Helper()
	c.await("the deadline", func() string {
		text := c.page("/readyz?verbose")
		if !strings.Contains(text, "; history is lost in about ") && !strings.Contains(text, "; history has been getting lost for about ") {
			return text
		}
		if !strings.Contains(c.page("/metrics"), "kubecdc_condition_deadline_timestamp_seconds{") {
			return "no series"
		}
		return ""
	})
}

// awaitStored ends the exporter, and checks that journal stat has the conditions that are stored.
func (c *fixture) awaitStored(want []string) {
	c.t.Helper()
	c.must(c.exporter.Kill())
	_, out := c.command("journal", "stat", "--config", c.exporter.Config())
	for _, code := range want {
		stored := code == "DeadLettersKept" || code == "DeadLettersFull"
		if stored && (!strings.Contains(out, " "+code+": ") || !strings.Contains(out, "Remedy: ")) {
			c.t.Errorf("journal stat lacks %s:\n%s", code, out)
		}
	}
}

// TestTheCauseFollowsTheDestination has a receiver that is closed, then hangs for longer than the test lasts, then has too
// much to do. Each replaces the cause before.
func TestTheCauseFollowsTheDestination(t *testing.T) {
	c := surround(t).fixture(t)
	r := c.switchedReceiver()
	r.serve(accept)
	c.sink("webhook", mapping{"url": "http://" + r.address, "timeout": "1h"}, cloudEvents)
	c.start()
	r.close()
	c.create(workload.ConfigMaps, "waits")
	for _, next := range []struct {
		answer http.HandlerFunc
		code   string
	}{{nil, "SinkUnreachable"}, {hang, "SinkTimeout"}, {busy, "SinkBusy"}, {hang, "SinkTimeout"}, {nil, "SinkUnreachable"}} {
		if r.close(); next.answer != nil {
			r.serve(next.answer)
		}
		began := time.Now()
		c.awaitConditions([]string{next.code})
		t.Logf("%s after %v", next.code, time.Since(began).Round(time.Second))
	}
	r.serve(accept)
	c.awaitWell()
}
