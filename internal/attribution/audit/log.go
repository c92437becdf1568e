package audit

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// maxBatch is the number of events stored in one call.
const maxBatch = 256

// StoreEvents stores events of one origin and returns when they are durable. place and position, unless place is empty, are
// stored in the same commit. It does not keep the slice.
type StoreEvents func(ctx context.Context, origin string, events []Event, place, position string) error

// RecordLoss records that events were lost between since and now, for a reason in one sentence. The record is durable when
// it returns nil. since is zero if it is not known.
type RecordLoss func(ctx context.Context, since time.Time, reason string) error

// Options are the dependencies of a [Log]. All are required.
type Options struct {
	StoreEvents StoreEvents
	// StoredPosition returns the position that StoreEvents stored last under a name; "" where nothing is stored.
	StoredPosition func(name string) (string, error)
	RecordLoss     RecordLoss
	Logger         *slog.Logger
}

// Log is the common part of the resumable intakes: a file, or a topic.
type Log struct {
	Options
	name      string
	remedy    string
	condition *condition.Condition

	malformed atomic.Uint64
}

// NewLog returns a log. remedy is shown while it cannot be read.
func NewLog(name, remedy string, o Options) *Log {
	c := condition.New(o.Logger.With("audit log", name), "audit/"+strings.TrimPrefix(name, "/"), condition.Problem{})
	return &Log{Options: o, name: name, remedy: remedy, condition: c}
}

// Name is the path of the file, or the name of the topic.
func (l *Log) Name() string { return l.name }

// Status returns whether the log can be read, and the number of malformed lines and records.
func (l *Log) Status() (status condition.Status, malformed uint64) {
	return l.condition.Status(), l.malformed.Load()
}

// UpdateCondition sets whether the log can be read; a nil err means that it can.
func (l *Log) UpdateCondition(err error) {
	if err == nil {
		l.condition.Clear()
		return
	}
	l.condition.Update(condition.Problem{Code: condition.AuditUnreadable, Cause: err.Error(), Remedy: l.remedy})
}

// Part is a portion of a log that is stored at once.
type Part struct {
	Origin    string // the API server that wrote it; "" if not known
	Events    []Event
	Malformed int       // lines or records that are not audit events
	Since     time.Time // response time of the newest event before the part; zero if not known
	Place     string
	Position  string // after the part
}

// NewestEvent returns the response time of the newest event of the part, or Since if that is later.
func (p *Part) NewestEvent() time.Time {
	newest := p.Since
	for i := range p.Events {
		if done := p.Events[i].Done; done != 0 && done.Time().After(newest) {
			newest = done.Time()
		}
	}
	return newest
}

// StorePart stores a part and records a loss for its malformed lines. The position is stored last, so a crash in between
// repeats events and loses none.
func (l *Log) StorePart(ctx context.Context, p Part) error {
	if p.Malformed > 0 {
		l.malformed.Add(uint64(p.Malformed))
		reason := "the audit log " + l.name + " has lines or records that are not audit events, or too long"
		if err := l.StoreLoss(ctx, p.Since, reason); err != nil {
			return err
		}
	}
	for len(p.Events) > maxBatch {
		if err := l.StoreEvents(ctx, p.Origin, p.Events[:maxBatch], "", ""); err != nil {
			return &storeError{err}
		}
		p.Events = p.Events[maxBatch:]
	}
	if err := l.StoreEvents(ctx, p.Origin, p.Events, p.Place, p.Position); err != nil {
		return &storeError{err}
	}
	return nil
}

// StoreLoss records a loss. Call it before storing the position after the lost events.
func (l *Log) StoreLoss(ctx context.Context, since time.Time, reason string) error {
	if err := l.RecordLoss(ctx, since, reason); err != nil {
		return &storeError{err}
	}
	return nil
}

// storeError wraps an error of StoreEvents or RecordLoss, which ends the intake.
type storeError struct{ error }

// PollUntilDone calls read at intervals, and report with its result, until ctx ends or events cannot be stored.
func PollUntilDone(ctx context.Context, every time.Duration, read func(context.Context) error, report func(error)) error {
	for {
		err := read(ctx)
		var stored *storeError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &stored):
			return stored.error
		}
		report(err)
		if ratelimit.Sleep(ctx, every) != nil {
			return context.Cause(ctx)
		}
	}
}
