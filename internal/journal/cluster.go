package journal

import (
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
)

// Cluster returns the identity of the cluster that positions and known objects are of, as SetCluster or ResetForCluster
// last stored it; "" when none was stored.
func (j *Journal) Cluster() (string, error) { return j.loadText("cluster", codec.KeyCluster) }

// SetCluster stores the identity of the cluster. Durable when it returns nil.
func (j *Journal) SetCluster(ctx context.Context, uid string) error {
	return j.storeText(ctx, codec.KeyCluster, uid)
}

// ResetForCluster forgets all that is stored of resources, as DropResource does of one, because what is watched from now on is
// another cluster, and remembers that one and the reason, all in one write. Changes stay: they were true. Durable when it
// returns nil; ordered with Append.
func (j *Journal) ResetForCluster(ctx context.Context, uid, reason string) error {
	if uid == "" || reason == "" {
		return fmt.Errorf("journal: begin anew for cluster %q because of %q: both must be given", uid, reason)
	}
	return j.submitRequest(ctx, func(g *group) error {
		g.dropResources()
		g.setKey(codec.KeyCluster, []byte(uid))
		g.setKey(codec.KeyResetReason, []byte(reason))
		return nil
	}, func(b *bodyIndex) { *b = newBodyIndex() })
}

// ResetReason returns the reason of a ResetForCluster or what a Seed lacked that is not Announced yet, now or by an earlier process;
// "" when there is none. The caller announces a gap for every resource.
func (j *Journal) ResetReason() (string, error) {
	return j.loadText("begun anew", codec.KeyResetReason)
}
