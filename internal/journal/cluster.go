package journal

import (
	"context"
	"fmt"
)

// Keys of what the journal knows about the cluster it was filled from. See docs/journal-format.md.
var (
	keyCluster = []byte{prefixMeta, 'c'}
	keyAnew    = []byte{prefixMeta, 'a'}
)

// Cluster returns the identity of the cluster that positions and known objects are of, as RememberCluster or BeginAnew
// last stored it; "" when none was stored.
func (j *Journal) Cluster() (string, error) {
	done, err := j.use()
	if err != nil {
		return "", err
	}
	defer done()
	value, err := j.get(keyCluster)
	if err != nil {
		return "", j.checked("cluster", err)
	}
	return string(value), nil
}

// RememberCluster stores the identity of the cluster. Durable when it returns nil.
func (j *Journal) RememberCluster(ctx context.Context, uid string) error {
	return j.submit(ctx, clusterNote(uid))
}

// BeginAnew forgets all that is stored of resources, as DropResource does of one, because what is watched from now on is another
// cluster, and remembers that one and the reason, all in one write. Changes stay: they were true. Durable when it
// returns nil; ordered with Append.
func (j *Journal) BeginAnew(ctx context.Context, uid, reason string) error {
	return j.submit(ctx, newBeginning{uid, reason})
}

// BegunAnew returns the reason of a BeginAnew that is not Announced yet, now or by an earlier process; "" when there is
// none. The caller announces a gap for every resource.
func (j *Journal) BegunAnew() (reason string, err error) {
	done, err := j.use()
	if err != nil {
		return "", err
	}
	defer done()
	value, err := j.get(keyAnew)
	if err != nil {
		return "", j.checked("begun anew", err)
	}
	return string(value), nil
}

type clusterNote string

func (c clusterNote) addTo(g *group) error {
	g.set(keyCluster, []byte(c))
	return nil
}

type newBeginning struct{ uid, reason string }

func (n newBeginning) addTo(g *group) error {
	if n.uid == "" || n.reason == "" {
		return fmt.Errorf("journal: begin anew for cluster %q because of %q: both must be given", n.uid, n.reason)
	}
	for _, name := range g.resourceNames() {
		_ = resourceDrop(name).addTo(g)
	}
	g.set(keyCluster, []byte(n.uid))
	g.set(keyAnew, []byte(n.reason))
	return nil
}

func (n newBeginning) noteTo(b *bodies) {
	if n.uid != "" && n.reason != "" {
		*b = newBodies()
	}
}
