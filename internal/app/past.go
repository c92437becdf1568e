package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// pastTimeout bounds how long a start on an empty journal waits for the destinations.
	pastTimeout = 5 * time.Second
	// pastWindow is how many positions are read at the end of each lane: there may be markers, and records of others.
	pastWindow = 1000
)

// forgottenPast is the reason in gap records where the destination has a past that no memory holds.
const forgottenPast = "the destination holds records of earlier runs, of which the journal and the state are gone"

// recordForgottenPast makes each resource begin with a gap record if the journal knows nothing, while a destination holds
// records of the cluster: what happened between these and now is lost. A destination that does not answer has no past. // I5
func recordForgottenPast(ctx context.Context, cfg *config.Config, j *journal.Journal, log *slog.Logger) error {
	known, err := j.Resources()
	if err != nil || j.Newest() > 0 || len(known) > 0 {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, pastTimeout)
	defer cancel()
	var looking sync.WaitGroup
	var past sync.Map // of sinks
	for _, s := range cfg.Sinks {
		if s.Kafka == nil && s.NATS == nil {
			continue
		}
		looking.Go(func() {
			found, err := holdsRecords(limited, s, cfg.Cluster.Name)
			switch {
			case found:
				past.Store(s.Name, nil)
				log.Warn(forgottenPast+": each resource begins with a gap", "sink", s.Name)
			case err != nil:
				log.Warn("not known whether the destination holds records of earlier runs, after which a gap would stand", "sink", s.Name, "error", err)
			}
		})
	}
	looking.Wait()
	for range past.Range {
		return j.RecordLost(ctx, forgottenPast)
	}
	return nil
}

// errFound ends a reading.
var errFound = errors.New("found")

// holdsRecords reports whether a lane of a sink ends with records of a cluster, among those of others.
func holdsRecords(ctx context.Context, s config.Sink, cluster string) (bool, error) {
	reader, err := OpenStoredReader(s)
	if err != nil {
		return false, err
	}
	defer func() { _ = reader.Close(ctx) }() // it only read
	targets, err := reader.Targets(ctx)
	for _, target := range targets {
		lanes, failed := reader.StoredLanes(ctx, target)
		if failed != nil && condition.ProblemOf(failed, "").Code == condition.SinkTargetMissing {
			continue
		}
		var ends []sinks.StoredSpan
		for _, l := range lanes {
			ends = append(ends, sinks.StoredSpan{StoredLane: l, From: max(l.First, l.End-pastWindow), To: l.End})
		}
		if failed == nil {
			failed = reader.ReadStored(ctx, ends, func(r sinks.StoredRecord) error {
				if stored, _ := format.ReadStored(r.Value, r.Header); stored.Cluster == cluster && stored.ID != "" {
					return errFound
				}
				return nil
			})
		}
		if errors.Is(failed, errFound) {
			return true, nil
		}
		err = errors.Join(err, failed)
	}
	return false, err
}
