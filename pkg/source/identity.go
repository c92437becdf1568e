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

// identity makes sure that the API server is one of the cluster that what is stored was read from. It is asked at the
// start and, because another cluster may come up behind the same address, after every end of a connection. Safe for
// concurrent use.
type identity struct {
	cfg  *Config
	turn chan struct{} // one asks, and the others take its answer

	// Guarded by turn.
	checked time.Time // what happened before needs no further question; zero until it was answered once
	denied  time.Time // when the right was missing; what happens after is not asked about for a while
	denials int       // in a row

	uid       atomic.Pointer[string] // "" until it is known
	condition *condition.Condition   // OK while it can be checked
}

// The states of identity.
var (
	checkable   = condition.State{Name: "checked", Message: "which cluster this is can be read now"}
	uncheckable = condition.State{
		Name: "unchecked", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "it cannot be checked whether this is the cluster that the journal was filled from",
	}
)

func newIdentity(cfg *Config) *identity {
	i := &identity{cfg: cfg, turn: make(chan struct{}, 1), condition: condition.New(cfg.Log, checkable)}
	i.uid.Store(&cfg.StoredCluster)
	return i
}

// doubt is that another cluster may answer from now on.
type doubt struct {
	since   time.Time // when a connection ended; zero is no doubt
	refused bool      // by the API server, for want of a right
}

func doubtAfter(err error) doubt {
	return doubt{since: time.Now(), refused: apiserver.Classify(err) == apiserver.Forbidden}
}

// confirm asks whether the cluster is still the same, unless that was asked after the doubt arose. It returns nil when it
// is, and also when this program may not know: that is said once. A *ReplacedError says that it is another. Any other error
// is a question without an answer; the caller asks again.
//
// A missing right spares the question for a while, but only where the doubt arose after it was found missing, and where
// nothing else was refused: a cluster that was built anew allows nothing at first, and then everything at a time.
func (i *identity) confirm(ctx context.Context, d doubt) error {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if d.since.IsZero() || i.checked.After(d.since) { // at the same moment is not after: clocks tick coarsely
		return nil
	}
	if !d.refused && d.since.After(i.denied) && time.Since(i.denied) < deniedWait {
		return nil
	}
	err := i.ask(ctx)
	if v := apiserver.Classify(err); v != apiserver.Forbidden && v != apiserver.NotServed {
		return err
	}
	// A right that was there may be gone for a moment, while the API server starts.
	if i.denials++; !i.checked.IsZero() && i.denials < triesToIdentify {
		return errors.New("the namespace kube-system cannot be read: " + apiserver.Reason(err))
	}
	i.skip(err)
	return nil
}

// ask asks once and compares the answer with what is known. It is used by one goroutine at a time.
func (i *identity) ask(ctx context.Context) error {
	began := time.Now()
	uid, err := i.cfg.Client.ClusterUID(ctx)
	if err != nil {
		return err
	}
	i.checked, i.denied, i.denials = began, time.Time{}, 0
	i.condition.Become(checkable, "", "")
	switch known := *i.uid.Load(); known {
	case uid:
		return nil
	case "":
		return i.become(ctx, uid)
	default:
		return &ReplacedError{Host: i.cfg.Client.Host(), Stored: known, Now: uid, Fresh: i.cfg.BeginAnew != nil}
	}
}

// become notes which cluster it is, where nobody knew.
func (i *identity) become(ctx context.Context, uid string) error {
	if i.cfg.Remember != nil {
		if err := i.cfg.Remember(ctx, uid); err != nil {
			return fmt.Errorf("remember the cluster: %w", err)
		}
	}
	i.uid.Store(&uid)
	return nil
}

// skip goes on without an answer. It is asked for again after a while.
func (i *identity) skip(err error) {
	i.denied = time.Now()
	i.condition.Become(uncheckable, apiserver.Reason(err), "allow get on the namespace kube-system")
}

// status is the UID, "" if it is not known, and why it cannot be checked, "" if it can.
func (i *identity) status() (uid, unchecked string) {
	return *i.uid.Load(), i.condition.Status().Reason
}
