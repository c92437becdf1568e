package delivery

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Journal is what a pipeline needs of the journal.
type Journal interface {
	// Read returns the next records with an Offset greater than after: at least one, ascending, without a hole. It
	// blocks until there is one or ctx ends. Changes may alias one buffer; the pipeline does not modify them. An error
	// ends the pipeline. Two goroutines call it, each from its own place.
	Read(ctx context.Context, after uint64) ([]event.Record, error)

	// Settle stores the cursor and the dead letters in one atomic write that is durable when it returns nil (I2). After
	// an error, which leaves open whether the write happened, both are stored again by a later call; a dead letter is
	// therefore identified by its Offset. Never called concurrently.
	Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error
}
