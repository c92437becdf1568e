package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	pastTimeout = 5 * time.Second // of a start on an empty journal
	pastWindow  = 1000            // positions at the end of each lane: there may be markers, and records of others

	forgottenPast = "the destination holds records of earlier runs, and what they knew is gone"
	unknownPast   = "it is not known whether the destination holds records of earlier runs"
)

// recordForgottenPast makes each resource begin with a gap record if the journal is empty while the lanes of a sink end with
// records of the cluster, since what happened in between is lost, or while a destination does not answer. // I5
func recordForgottenPast(ctx context.Context, cfg *config.Config, j *journal.Journal, log *slog.Logger) error {
	known, err := j.Resources()
	lost, failed := j.ResetReason() // of a take-over, which knows why
	if err = errors.Join(err, failed); err != nil || j.Newest() > 0 || len(known) > 0 || lost != "" {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, pastTimeout)
	defer cancel()
	var looking sync.WaitGroup
	var found, unknown atomic.Bool
	for _, s := range cfg.Sinks {
		looking.Go(func() {
			err := findRecords(limited, s, cfg.Cluster.Name)
			if errors.Is(err, errFound) {
				found.Store(true)
				log.Warn(forgottenPast+": each resource begins with a gap", "sink", s.Name)
			} else if err != nil {
				unknown.Store(true)
				log.Warn(unknownPast+": each resource begins with a gap", "sink", s.Name, "error", err)
			}
		})
	}
	looking.Wait()
	switch {
	case found.Load():
		return j.RecordLost(ctx, forgottenPast)
	case unknown.Load():
		return j.RecordLost(ctx, unknownPast)
	}
	return nil
}

var errFound = errors.New("found")

// findRecords returns errFound if a lane of a sink ends with records of a cluster, among those of others.
func findRecords(ctx context.Context, s config.Sink, cluster string) error {
	if s.Kafka == nil && s.NATS == nil {
		return nil
	}
	reader, err := OpenStoredReader(s)
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close(context.WithoutCancel(ctx)) }() // it only read, and may have used up its time
	targets, err := reader.Targets(ctx)
	for _, target := range targets {
		lanes, failed := reader.StoredLanes(ctx, target)
		if failed != nil && condition.ProblemOf(failed, "").Code == condition.SinkTargetMissing {
			continue
		}
		ends := make([]sinks.StoredSpan, len(lanes))
		for i, l := range lanes {
			ends[i] = sinks.StoredSpan{StoredLane: l, From: max(l.First, l.End-pastWindow), To: l.End}
		}
		err = errors.Join(err, failed, reader.ReadStored(ctx, ends, func(r sinks.StoredRecord) error {
			if stored, _ := format.ReadStored(r.Value, r.Header); stored.Cluster == cluster && stored.ID != "" {
				return errFound
			}
			return nil
		}))
		if errors.Is(err, errFound) {
			break
		}
	}
	return err
}
