package deltas

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Observation is [event.Observation].
type Observation = event.Observation

// Append takes ownership of an observation in order. It returns before the observation is durable, blocks only when
// memory or disk is at its bound, and fails only when the process is stopping.
type Append func(ctx context.Context, o Observation) error
