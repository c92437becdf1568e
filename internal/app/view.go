package app

import (
	"context"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// appendObservation shows the facts of an observation's changes to those who look, and journals it. What the first lists name is no
// news.
func (c *composition) appendObservation(ctx context.Context, o event.Observation) error {
	for _, change := range o.Changes {
		if change.Type == event.Snapshot || change.Type == event.Sync {
			continue
		}
		c.admin.ObserveChange(
			func(b []byte) []byte { return format.AppendFacts(b, change) },
			func(b []byte) []byte { return format.AppendFacts(b, withoutLongFields(change)) },
		)
	}
	return c.journal.Append(ctx, o)
}

// withoutLongFields is a change without what may be long.
func withoutLongFields(c *event.Change) *event.Change {
	short := *c
	short.Changed, short.Omitted = nil, nil
	return &short
}

// newestDeadLetters is what the status page shows of the dead letters of a sink.
func (a *app) newestDeadLetters(sink string, most int) ([]admin.DeadLetter, error) {
	newest, err := a.current.Load().journal.NewestDeadLetters(sink, most)
	if err != nil {
		return nil, a.secrets.maskError(err)
	}
	shown := make([]admin.DeadLetter, len(newest))
	for i, d := range newest {
		object := d.Change.Name
		if d.Change.Namespace != "" {
			object = d.Change.Namespace + "/" + object
		}
		shown[i] = admin.DeadLetter{
			Offset: d.Offset, Time: d.Time, Type: string(d.Change.Type), Resource: d.Change.Resource.String(), Object: object,
			Reason: a.secrets.maskText(d.Reason),
		}
	}
	return shown, nil
}
