package source

import (
	"context"
	"fmt"
	"time"
)

// announce waits until every scope that is being watched has a position again, and with it the gap record that says what
// was lost (I5), and then lets the store forget that something was. Until then a restart would announce the gap for the
// scopes that are still missing.
func (s *Source) announce(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !positioned(s.Status()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	if err := s.cfg.Announced(ctx); err != nil {
		s.failed(fmt.Errorf("note that the gaps are announced: %w", err))
	}
}

func positioned(scopes []Status) bool {
	for _, s := range scopes {
		if s.Position == "" && s.State != Waiting {
			return false
		}
	}
	return len(scopes) > 0
}
