package audit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Counters reads what API servers count themselves of their audit events, and says when some were lost: the only sign of
// what never left an API server.
type Counters struct {
	read       func(ctx context.Context) (io.ReadCloser, error)
	recordLoss RecordLoss
	every      time.Duration

	errorsByStart map[string]float64 // errors counted, by the start time of the API server
	lastRead      time.Time          // when they were read before
	newestStart   float64            // start of the API server that started last, in seconds since 1970
	reason        atomic.Pointer[string]
}

// readTimeout is how long an API server may take to tell its metrics.
const readTimeout = 30 * time.Second

// NewCounters returns a reader. read returns the metrics of an API server in the text format of Prometheus, of any one at
// each call; lost is told what was lost, between a time and now.
func NewCounters(every time.Duration, read func(context.Context) (io.ReadCloser, error), lost RecordLoss) *Counters {
	return &Counters{read: read, recordLoss: lost, every: every, errorsByStart: map[string]float64{}}
}

// ReadProblem says why the counters cannot be read; "" while they can.
func (c *Counters) ReadProblem() string {
	if reason := c.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}

// Run reads until ctx ends.
func (c *Counters) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.every)
	defer ticker.Stop()
	for {
		reason := ""
		if err := c.readOnce(ctx, time.Now()); err != nil && ctx.Err() == nil {
			reason = err.Error()
		}
		c.reason.Store(&reason)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// readOnce reads once.
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

// compareErrors says what was lost. An API server is known by the time of its start; which one answers is up to what is in
// between. What cannot be stored is compared again.
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

// describeLoss says what was lost since the counters were read before; "" where nothing was.
func (c *Counters) describeLoss(started string, seconds, errors float64) string {
	before, known := c.errorsByStart[started]
	if !known && len(c.errorsByStart) == 0 {
		return "" // it is the first, and what was lost before anybody asked for names is not said
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
	return "an API server was started at " + at + ": if one was killed before, the audit events that it had not sent are lost" + reason
}

const (
	auditErrors  = "apiserver_audit_error_total"
	processStart = "process_start_time_seconds"
)

// scanCounters finds the start of the process and the sum of its audit errors.
func scanCounters(metrics io.Reader) (started string, errors float64, err error) {
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, maxLine)
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
