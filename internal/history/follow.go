package history

import (
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/history"
)

// followEvery is how often Follow looks for a commit.
const followEvery = time.Second

// Follow passes the entries of the rows that are written to a folder after those of a history, until ctx ends, which is no
// error. An author that comes later than its change is an entry of the type attributed.
func Follow(ctx context.Context, where string, since *History, o LogOptions, pass func(*Entry) error) error {
	version, tick := since.snapshot.Manifest.Version, time.NewTicker(followEvery)
	defer tick.Stop()
	for o.After = since.snapshot.Manifest.LastSequence(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if m, err := history.ReadManifest(since.store); err != nil || m.Version == version {
			if err != nil {
				return err
			}
			continue
		}
		h, err := Open(where)
		if err != nil {
			return err
		}
		if h.snapshot.Manifest.LastSequence() > o.After {
			err = h.Log(ctx, o, pass)
		}
		version, o.After = h.snapshot.Manifest.Version, h.snapshot.Manifest.LastSequence()
		if closeErr := h.Close(); err == nil {
			err = closeErr
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
