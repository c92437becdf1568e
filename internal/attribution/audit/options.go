package audit

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// requestOptions are the facts of an event from which it follows whether the request was a dry run, as the handlers of
// kube-apiserver decide it:
//
//   - create, update and patch, with apply and subresources: the query;
//   - delete and deletecollection: the body, if there is one, and then the query has no effect; else the query;
//   - eviction: the query or the body's deleteOptions.
//
// The value does not matter: an API server rejects every value but "All".
type requestOptions struct {
	uri       []byte
	hasBodies bool   // the level of the event includes request bodies, and they were not truncated
	hasBody   bool   // there is one
	bodyDry   bool   // dryRun of its delete options is not empty
	noted     string // by the admission policy, whether it is a dry run: "true" or "false"; "" if it did not match
}

func (o *requestOptions) outcome(verb, subresource string) Outcome {
	deletes := verb == "delete" || verb == "deletecollection"
	switch {
	case deletes && (o.hasBody || !o.hasBodies), subresource == eviction && !hasDryRun(o.uri):
		return o.outcomeByBody()
	case hasDryRun(o.uri):
		return NotStored
	}
	return Stored
}

// outcomeByBody returns the outcome of a request of which the body decides, or may decide.
func (o *requestOptions) outcomeByBody() Outcome {
	switch {
	case o.hasBody && o.bodyDry, !o.hasBodies && o.noted == "true":
		return NotStored
	case o.hasBody, !o.hasBodies && o.noted == "false":
		return Stored
	}
	return OutcomeUnknown
}

// hasDryRun reports whether the query of a request URI has the key dryRun, as net/url reads it for the API server. Only keys
// with an escape need the parser.
func hasDryRun(uri []byte) bool {
	_, query, _ := bytes.Cut(uri, []byte("?"))
	if !bytes.Contains(query, []byte("dryRun")) && !bytes.ContainsRune(query, '%') {
		return false
	}
	values, _ := url.ParseQuery(string(query)) // an API server ignores the error, too
	return values.Has("dryRun")
}

// scanBody reads the delete options in the body of a delete or an eviction at i.
func (e *Event) scanBody(b []byte, i int, o *requestOptions) {
	if e.Subresource != eviction {
		e.scanDeleteOptions(b, i, o)
		return
	}
	scanMembers(b, i, func(key []byte, i int) int {
		if string(key) == "deleteOptions" {
			return e.scanDeleteOptions(b, i, o)
		}
		return skipValue
	})
}

func (e *Event) scanDeleteOptions(b []byte, i int, o *requestOptions) int {
	return scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "dryRun":
			o.bodyDry = hasElements(b, i)
		case "preconditions":
			return scanUID(b, i, &e.RefUID)
		}
		return skipValue
	})
}

// Counters polls the audit metrics of API servers and reports events that an API server lost before it sent them. Nothing
// else reveals those.
type Counters struct {
	read       func(ctx context.Context) (io.ReadCloser, error)
	recordLoss RecordLoss
	every      time.Duration

	errorsByStart map[string]float64 // counted errors, by the start time of the API server
	lastRead      time.Time          // time of the last reading
	newestStart   float64            // latest start of an API server, in Unix seconds
}

// readTimeout bounds one reading of the metrics.
const readTimeout = 30 * time.Second

// NewCounters returns a reader. read returns the metrics of any one API server in the Prometheus text format; behind a load
// balancer each call may reach another one. lost records a loss.
func NewCounters(every time.Duration, read func(context.Context) (io.ReadCloser, error), lost RecordLoss) *Counters {
	return &Counters{read: read, recordLoss: lost, every: every, errorsByStart: map[string]float64{}}
}

// Run polls until ctx ends and returns its cause.
func (c *Counters) Run(ctx context.Context) error {
	for {
		_ = c.readOnce(ctx, time.Now()) // what it misses is in the counters of the next reading
		if ratelimit.Sleep(ctx, c.every) != nil {
			return context.Cause(ctx)
		}
	}
}

// readOnce reads the metrics of one API server and records a loss.
func (c *Counters) readOnce(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, min(c.every, readTimeout))
	defer cancel()
	metrics, err := c.read(ctx)
	if err != nil {
		return err
	}
	defer metrics.Close()
	started, errors, err := scanCounters(metrics)
	if err != nil {
		return err
	}
	return c.compareErrors(ctx, started, errors, now)
}

// compareErrors records what the API server with this start time lost since its last reading. If the loss cannot be stored,
// the next reading compares with the same values again.
func (c *Counters) compareErrors(ctx context.Context, started string, errors float64, now time.Time) error {
	seconds, err := strconv.ParseFloat(started, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", processStart, err)
	}
	if reason := c.describeLoss(started, seconds, errors); reason != "" {
		if err := c.recordLoss(ctx, c.lastRead, reason); err != nil {
			return err
		}
	}
	c.errorsByStart[started], c.newestStart, c.lastRead = errors, max(c.newestStart, seconds), now
	return nil
}

// describeLoss describes what was lost since the last reading; "" if nothing was.
func (c *Counters) describeLoss(started string, seconds, errors float64) string {
	before, known := c.errorsByStart[started]
	if !known && len(c.errorsByStart) == 0 {
		return "" // losses before the first reading are not reported
	}
	reason := ""
	if errors > before {
		reason = fmt.Sprintf("an API server lost %.0f audit events before it sent them", errors-before)
	}
	if known || seconds <= c.newestStart {
		return reason
	}
	at := time.UnixMilli(int64(seconds * 1000)).UTC().Format(time.RFC3339)
	if reason != "" {
		reason = ", and " + reason
	}
	return "an API server was started at " + at + ": if one was killed before, its unsent audit events are lost" + reason
}

const (
	auditErrors  = "apiserver_audit_error_total"
	processStart = "process_start_time_seconds"

	maxMetricsLine = 8 << 20 // bytes
)

// scanCounters returns the start time of the process, as written, and the sum of its audit errors.
func scanCounters(metrics io.Reader) (started string, errors float64, err error) {
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, maxMetricsLine)
	for lines.Scan() {
		line := lines.Text()
		if rest, found := strings.CutPrefix(line, processStart+" "); found {
			started = strings.TrimSpace(rest)
		}
		if rest, found := strings.CutPrefix(line, auditErrors); found && rest != "" && (rest[0] == ' ' || rest[0] == '{') {
			if n, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64); err == nil {
				errors += n
			}
		}
	}
	if err := lines.Err(); err != nil {
		return "", 0, err
	}
	if started == "" {
		return "", 0, fmt.Errorf("the metrics have no %s", processStart)
	}
	return started, errors, nil
}
