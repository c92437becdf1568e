package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// ReplacedError says that the API server belongs to another cluster than what is stored: the UIDs of their namespaces
// kube-system differ. Positions and known objects of one mean nothing in the other.
type ReplacedError struct {
	Host        string // of the API server
	Stored, Now string // the UIDs
	Fresh       bool   // the next start begins anew
}

// Error names both clusters and the remedy.
func (e *ReplacedError) Error() string {
	what := fmt.Sprintf("the API server at %s belongs to another cluster: the UID of its namespace kube-system is %s, "+
		"and the journal was filled from %s", e.Host, e.Now, e.Stored)
	if e.Fresh {
		return what + "; the next start forgets what was known and begins anew (cluster.onReplaced: fresh)"
	}
	return what + "; connect to the right cluster (cluster.kubeconfig, cluster.context), give the new one a journal of its own " +
		"(journal.dir), or have the old one forgotten (cluster.onReplaced: fresh)"
}

// clusterIdentity makes sure that the API server is one of the cluster that what is stored was read from. It is asked at the
// start and, because another cluster may come up behind the same address, after every end of a connection. Safe for
// concurrent use.
type clusterIdentity struct {
	cfg    *Config
	asking chan struct{} // one asks, and the others take its answer

	// Guarded by turn.
	lastChecked time.Time // what happened before needs no further question; zero until it was answered once
	lastDenied  time.Time // when the right was missing; what happens after is not asked about for a while
	denials     int       // in a row

	uid       atomic.Pointer[string] // "" until it is known
	condition *condition.Condition   // OK while it can be checked
}

// The states of identity.
var (
	identityChecked   = condition.State{Name: "checked", Message: "which cluster this is can be read now"}
	identityUnchecked = condition.State{
		Name: "unchecked", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "it cannot be checked whether this is the cluster that the journal was filled from",
	}
)

func newClusterIdentity(cfg *Config) *clusterIdentity {
	i := &clusterIdentity{cfg: cfg, asking: make(chan struct{}, 1), condition: condition.New(cfg.Log, identityChecked)}
	i.uid.Store(&cfg.StoredClusterUID)
	return i
}

// clusterRecheck is that another cluster may answer from now on.
type clusterRecheck struct {
	since     time.Time // when a connection ended; zero is no doubt
	forbidden bool      // by the API server, for want of a right
}

func recheckAfter(err error) clusterRecheck {
	return clusterRecheck{since: time.Now(), forbidden: apiserver.Classify(err) == apiserver.Forbidden}
}

// confirmUnchanged asks whether the cluster is still the same, unless that was asked after the doubt arose. It returns nil when it
// is, and also when this program may not know: that is said once. A *ReplacedError says that it is another. Any other error
// is a question without an answer; the caller asks again.
//
// A missing right spares the question for a while, but only where the doubt arose after it was found missing, and where
// nothing else was refused: a cluster that was built anew allows nothing at first, and then everything at a time.
func (i *clusterIdentity) confirmUnchanged(ctx context.Context, d clusterRecheck) error {
	select {
	case i.asking <- struct{}{}:
		defer func() { <-i.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if d.since.IsZero() || i.lastChecked.After(d.since) { // at the same moment is not after: clocks tick coarsely
		return nil
	}
	if !d.forbidden && d.since.After(i.lastDenied) && time.Since(i.lastDenied) < deniedRecheck {
		return nil
	}
	err := i.queryUID(ctx)
	if v := apiserver.Classify(err); v != apiserver.Forbidden && v != apiserver.NotServed {
		return err
	}
	// A right that was there may be gone for a moment, while the API server starts.
	if i.denials++; !i.lastChecked.IsZero() && i.denials < maxIdentifyAttempts {
		return errors.New("the namespace kube-system cannot be read: " + apiserver.Reason(err))
	}
	i.recordDenied(err)
	return nil
}

// queryUID asks once and compares the answer with what is known. It is used by one goroutine at a time.
func (i *clusterIdentity) queryUID(ctx context.Context) error {
	began := time.Now()
	uid, err := i.cfg.Client.ClusterUID(ctx)
	if err != nil {
		return err
	}
	i.lastChecked, i.lastDenied, i.denials = began, time.Time{}, 0
	i.condition.Update(identityChecked, "", "")
	switch known := *i.uid.Load(); known {
	case uid:
		return nil
	case "":
		return i.recordUID(ctx, uid)
	default:
		return &ReplacedError{Host: i.cfg.Client.Host(), Stored: known, Now: uid, Fresh: i.cfg.ResetCluster != nil}
	}
}

// recordUID notes which cluster it is, where nobody knew.
func (i *clusterIdentity) recordUID(ctx context.Context, uid string) error {
	if i.cfg.RecordCluster != nil {
		if err := i.cfg.RecordCluster(ctx, uid); err != nil {
			return fmt.Errorf("remember the cluster: %w", err)
		}
	}
	i.uid.Store(&uid)
	return nil
}

// recordDenied goes on without an answer. It is asked for again after a while.
func (i *clusterIdentity) recordDenied(err error) {
	i.lastDenied = time.Now()
	i.condition.Update(identityUnchecked, apiserver.Reason(err), "allow get on the namespace kube-system")
}

// status is the UID, "" if it is not known, and why it cannot be checked, "" if it can.
func (i *clusterIdentity) status() (uid, unchecked string) {
	return *i.uid.Load(), i.condition.Status().Reason
}
