package journal

import (
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
)

// Cluster returns the identity of the cluster that positions and known objects are of, as RememberCluster or BeginAnew
// last stored it; "" when none was stored.
func (j *Journal) Cluster() (string, error) { return j.text("cluster", codec.KeyCluster) }

// RememberCluster stores the identity of the cluster. Durable when it returns nil.
func (j *Journal) RememberCluster(ctx context.Context, uid string) error {
	return j.setText(ctx, codec.KeyCluster, uid)
}

// BeginAnew forgets all that is stored of resources, as DropResource does of one, because what is watched from now on is
// another cluster, and remembers that one and the reason, all in one write. Changes stay: they were true. Durable when it
// returns nil; ordered with Append.
func (j *Journal) BeginAnew(ctx context.Context, uid, reason string) error {
	if uid == "" || reason == "" {
		return fmt.Errorf("journal: begin anew for cluster %q because of %q: both must be given", uid, reason)
	}
	return j.submit(ctx, func(g *group) error {
		g.dropResources()
		g.set(codec.KeyCluster, []byte(uid))
		g.set(codec.KeyAnew, []byte(reason))
		return nil
	}, func(b *bodies) { *b = newBodies() })
}

// ResetReason returns the reason of a BeginAnew or what a Seed lacked that is not Announced yet, now or by an earlier process;
// "" when there is none. The caller announces a gap for every resource.
func (j *Journal) ResetReason() (string, error) { return j.text("begun anew", codec.KeyAnew) }
