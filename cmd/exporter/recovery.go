package main

import (
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/source"
)

// announceRecovery waits until every scope that is being watched has a position again, and with it the gap record that
// says what was lost with the broken journal (I5), and then lets the journal forget that it was broken. Until then a
// restart would announce the gap for the scopes that are still missing.
func (e *exporter) announceRecovery(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !positioned(e.source.Status()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	return e.journal.Announced(ctx)
}

func positioned(scopes []source.Status) bool {
	for _, s := range scopes {
		if s.Position == "" && s.State != source.Waiting {
			return false
		}
	}
	return len(scopes) > 0
}
