package source

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// ReplacedError reports that the API server belongs to another cluster than the stored state: the UIDs of their namespaces
// kube-system differ. Positions and known objects of one cluster mean nothing in another.
type ReplacedError struct {
	Host        string // of the API server
	Stored, Now string // the UIDs
	Fresh       bool   // the next start resets the stored state
}

// Error describes both clusters and the remedy.
func (e *ReplacedError) Error() string {
	what := fmt.Sprintf("the API server at %s belongs to another cluster: the UID of its namespace kube-system is %s, "+
		"and the journal was filled from %s", e.Host, e.Now, e.Stored)
	if e.Fresh {
		return what + "; the next start discards the known state and starts fresh (cluster.onReplaced: fresh)"
	}
	return what + "; connect to the right cluster (cluster.kubeconfig, cluster.context), give the new one its own journal " +
		"(journal.dir), or discard the known state (cluster.onReplaced: fresh)"
}

// maxIdentifyAttempts is the number of consecutive times that an API server may refuse to show kube-system. One that is
// starting refuses for a moment.
const maxIdentifyAttempts = 4

// deniedRecheck is the interval for trying a right again that stayed denied after the API server's start.
const deniedRecheck = 5 * time.Minute

// clusterIdentity checks that the API server belongs to the cluster that the stored state was read from. It is queried at
// the start, and after each end of a connection, because another cluster may appear behind the same address. Safe for
// concurrent use.
type clusterIdentity struct {
	cfg    *Config
	fail   func(error)   // ends the Source
	asking chan struct{} // capacity 1, held during a query; the others wait for its answer

	// Guarded by asking.
	lastChecked time.Time // begin of the last answered query, which covers every earlier recheck; zero if there is none
	lastDenied  time.Time // of the last denied query; later rechecks are skipped for a while
	denials     int       // consecutive

	uid       atomic.Pointer[string] // "" until known
	name      atomic.Pointer[string] // the cluster name in changes; "" until known
	condition *condition.Condition   // OK while the UID can be read
}

func newClusterIdentity(cfg *Config, fail func(error)) *clusterIdentity {
	i := &clusterIdentity{
		cfg: cfg, fail: fail, asking: make(chan struct{}, 1), condition: condition.New(cfg.Log, "cluster", condition.Problem{}),
	}
	i.uid.Store(&cfg.StoredClusterUID)
	i.name.Store(&cfg.Cluster)
	return i
}

// identifyCluster waits until the cluster is known, and compares it with the stored one. Nothing is read from the cluster
// before. If the cluster was replaced and the state was reset, it returns the reason of the gap that every resource begins
// with. unreachable is called with the reason of each failed attempt. It is called once.
func (i *clusterIdentity) identifyCluster(
	ctx context.Context, unreachable func(err error),
) (replaced string, err error) {
	var retry backoff
	for {
		err := i.queryUID(ctx)
		var other *ReplacedError
		switch v := apiserver.Classify(err); {
		case err == nil:
			i.adoptName()
			return "", nil
		case errors.As(err, &other):
			return i.resetForReplacement(ctx, other)
		case ctx.Err() != nil:
			return "", ctx.Err()
		case (v == apiserver.Forbidden || v == apiserver.NotServed) && i.cfg.Cluster != "":
			i.recordDenied(err)
			return "", nil
		case (v == apiserver.Forbidden || v == apiserver.NotServed) && retry.failures >= maxIdentifyAttempts:
			return "", &StartError{fmt.Errorf("the cluster's name is the UID of the namespace kube-system, which cannot be read: "+
				"%w; set cluster.name, or allow get on that namespace", err)}
		}
		unreachable(err)
		if err := ratelimit.Sleep(ctx, retry.nextWait(err)); err != nil {
			return "", err
		}
	}
}

// adoptName makes the UID the name of the cluster, if no name is configured.
func (i *clusterIdentity) adoptName() {
	if i.cfg.Cluster == "" {
		i.name.Store(i.uid.Load())
	}
}

// clusterName is the cluster name in changes; "" until it is known.
func (i *clusterIdentity) clusterName() string { return *i.name.Load() }

// resetForReplacement resets the stored state in favor of another cluster, if that is configured. Nothing is being read yet.
func (i *clusterIdentity) resetForReplacement(ctx context.Context, r *ReplacedError) (reason string, err error) {
	if i.cfg.ResetCluster == nil {
		return "", &StartError{r}
	}
	reason = fmt.Sprintf("the cluster was replaced: the UID of its namespace kube-system was %s and is %s", r.Stored, r.Now)
	if err := i.cfg.ResetCluster(ctx, r.Now, reason); err != nil {
		return "", fmt.Errorf("reset the state for another cluster: %w", err)
	}
	i.cfg.Log.Warn("another cluster answers: the known state is discarded, and every resource begins with a gap",
		"before", r.Stored, "now", r.Now)
	i.uid.Store(&r.Now)
	i.adoptName()
	return reason, nil
}

// clusterRecheck means that another cluster may answer the next request. The zero value means that nothing has to be
// checked.
type clusterRecheck struct {
	since     time.Time // end of the last connection
	forbidden bool      // the connection ended because the API server denied a right
}

func recheckAfter(err error) clusterRecheck {
	return clusterRecheck{since: time.Now(), forbidden: apiserver.Classify(err) == apiserver.Forbidden}
}

// confirmCluster is confirmUnchanged, and ends the Source if the cluster was replaced.
func (i *clusterIdentity) confirmCluster(ctx context.Context, c clusterRecheck) error {
	err := i.confirmUnchanged(ctx, c)
	var replaced *ReplacedError
	if errors.As(err, &replaced) {
		i.fail(replaced)
	}
	return err
}

// confirmUnchanged checks that the cluster is still the same, unless a query since the recheck arose has shown that. It
// returns nil if it is, and also if the program has no right to know, which is reported once. It returns a *ReplacedError if
// it is another cluster. Any other error means that the query failed; the caller retries.
//
// A denied right suppresses queries for a while. That applies only to a recheck that arose after the denial, and only if
// nothing else was forbidden: a rebuilt cluster denies everything at first, and then grants rights one by one.
func (i *clusterIdentity) confirmUnchanged(ctx context.Context, c clusterRecheck) error {
	select {
	case i.asking <- struct{}{}:
		defer func() { <-i.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.since.IsZero() || i.lastChecked.After(c.since) { // equal times are not enough: clocks are coarse
		return nil
	}
	if !c.forbidden && c.since.After(i.lastDenied) && time.Since(i.lastDenied) < deniedRecheck {
		return nil
	}
	err := i.queryUID(ctx)
	if v := apiserver.Classify(err); v != apiserver.Forbidden && v != apiserver.NotServed {
		return err
	}
	// An existing right may be missing for a moment while the API server starts.
	if i.denials++; !i.lastChecked.IsZero() && i.denials < maxIdentifyAttempts {
		return errors.New("the namespace kube-system cannot be read: " + apiserver.Reason(err))
	}
	i.recordDenied(err)
	return nil
}

// queryUID queries the UID once and compares it with the known one. Requires asking, or that nothing else runs yet.
func (i *clusterIdentity) queryUID(ctx context.Context) error {
	began := time.Now()
	uid, err := i.cfg.Client.ClusterUID(ctx)
	if err != nil {
		return err
	}
	i.lastChecked, i.lastDenied, i.denials = began, time.Time{}, 0
	i.condition.Clear()
	switch known := *i.uid.Load(); known {
	case uid:
		return nil
	case "":
		return i.recordUID(ctx, uid)
	default:
		return &ReplacedError{Host: i.cfg.Client.Host(), Stored: known, Now: uid, Fresh: i.cfg.ResetCluster != nil}
	}
}

// recordUID stores the UID of a cluster that was unknown.
func (i *clusterIdentity) recordUID(ctx context.Context, uid string) error {
	if i.cfg.RecordCluster != nil {
		if err := i.cfg.RecordCluster(ctx, uid); err != nil {
			return fmt.Errorf("record the UID of the cluster: %w", err)
		}
	}
	i.uid.Store(&uid)
	return nil
}

// recordDenied continues without an answer. The query is repeated after deniedRecheck.
func (i *clusterIdentity) recordDenied(err error) {
	i.lastDenied = time.Now()
	i.condition.Update(condition.Problem{Code: condition.ClusterUnchecked, Cause: apiserver.Reason(err)})
}
