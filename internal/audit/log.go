package audit

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// maxBatch is how many events are taken at once.
const maxBatch = 256

// StoreEvents takes events of one origin and returns when they are durable. place and position, if place is not empty, are stored
// in the same write. The slice is the caller's again then.
type StoreEvents func(ctx context.Context, origin string, events []Event, place, position string) error

// RecordLoss says that events were lost between a time and now, for a reason in one sentence. That is durable when it returns nil.
// since is zero where it is not known.
type RecordLoss func(ctx context.Context, since time.Time, reason string) error

// Options are what a [Log] works with. All are required.
type Options struct {
	StoreEvents StoreEvents
	// StoredPosition returns what Take has stored last as the position of a place; "" where nothing is stored.
	StoredPosition func(name string) (string, error)
	RecordLoss     RecordLoss
	Logger         *slog.Logger
}

var (
	conditionReadable   = condition.State{Name: "ok", Message: "audit log is read"}
	conditionUnreadable = condition.State{Name: "unreadable", Severity: condition.Degraded, Message: "audit log cannot be read; it is tried again"}
)

// Log is what every audit log has that is read from where it was read to the last time: a file, or a topic.
type Log struct {
	Options
	name      string
	remedy    string
	condition *condition.Condition

	malformed atomic.Uint64
}

// NewLog returns a log. remedy says what to do where it cannot be read.
func NewLog(name, remedy string, o Options) *Log {
	return &Log{Options: o, name: name, remedy: remedy, condition: condition.New(o.Logger.With("audit log", name), conditionReadable)}
}

// Name is the path of a file, or the name of a topic.
func (l *Log) Name() string { return l.name }

// Status says whether the log can be read; malformed counts lines and records that were no audit events.
func (l *Log) Status() (status condition.Status, malformed uint64) {
	return l.condition.Status(), l.malformed.Load()
}

// UpdateCondition says whether the log can be read now; nil: it can.
func (l *Log) UpdateCondition(err error) {
	if err == nil {
		l.condition.Update(conditionReadable, "", "")
		return
	}
	l.condition.Update(conditionUnreadable, err.Error(), l.remedy)
}

// Part is what was read of a log at once.
type Part struct {
	Origin    string // the API server that wrote it; "" where that is not known
	Events    []Event
	Malformed int       // lines or records that are no audit events
	Since     time.Time // when what was read before had been answered; zero where that is not known
	Place     string
	Position  string // behind the part
}

// NewestEvent returns when the newest event of a part had been answered, or of what was read before.
func (p *Part) NewestEvent() time.Time {
	newest := p.Since
	for i := range p.Events {
		if done := p.Events[i].Done; done != 0 && done.Time().After(newest) {
			newest = done.Time()
		}
	}
	return newest
}

// StorePart takes a part, and says what is lost of it. The position is stored last: what was cut off by a crash is read again.
func (l *Log) StorePart(ctx context.Context, p Part) error {
	if p.Malformed > 0 {
		l.malformed.Add(uint64(p.Malformed))
		if err := l.StoreLoss(ctx, p.Since, "the audit log "+l.name+" holds what is no audit event, or is too long for one"); err != nil {
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

// StoreLoss says that events are lost, before the position behind them is stored.
func (l *Log) StoreLoss(ctx context.Context, since time.Time, reason string) error {
	if err := l.RecordLoss(ctx, since, reason); err != nil {
		return &storeError{err}
	}
	return nil
}

// storeError is an error of Take or Lost: nothing more can be done.
type storeError struct{ error }

// PollUntilDone calls read every now and then, and report with what came of it, until ctx ends, or until what was read cannot be
// stored.
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
