package state

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const testHeartbeat = 20 * time.Millisecond

// startNamed starts a process with a name and a Lease, "" for none, on a journal, a new one if fs is nil.
func (w *world) startNamed(name, lease string, fs vfs.FS) *process {
	p := w.startProcess(fs)
	p.writer.opts.Owner, p.writer.opts.Lease, p.writer.heartbeat = name, lease, testHeartbeat
	return p
}

// runWriter runs the writer of an active process until stop is called.
func (p *process) runWriter() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.writer.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// checkRefused fails the test unless p may not take over, for a reason that contains all of these words.
func (p *process) checkRefused(words ...string) {
	p.t.Helper()
	defer func(before time.Duration) { p.writer.heartbeat = before }(p.writer.heartbeat)
	p.writer.heartbeat = time.Hour // it waits until it sees that the owner writes
	err := p.takeOver()
	for _, word := range words {
		if !strings.Contains(refusalReason(err), word) {
			p.t.Fatalf("%v; want a refusal with %q", err, word)
		}
	}
}

// TestSecondDeploymentIsRefusedForGood: without an election nothing else tells two deployments with one state apart.
func TestSecondDeploymentIsRefusedForGood(t *testing.T) {
	w := newWorld(t, 21, false)
	first := w.startNamed("first", "", nil)
	startActive(t, w, first)
	w.changeCluster(20, first)
	stop := first.runWriter()

	second := w.startNamed("second", "", nil)
	second.checkRefused(`exporter "first" of deployment `+first.writer.deployment.id, "which is running")
	second.checkRefused(`belongs to exporter "first" of deployment ` + first.writer.deployment.id)
	if err := stop(); err != nil {
		t.Fatalf("the first was deposed: %v", err)
	}
	second.shutDown()
	first.shutDown()
	again := w.startNamed("second", "", second.fs)
	again.checkRefused(`belongs to exporter "first"`)

	first = w.startNamed("first", "", first.fs)
	first.writer.heartbeat = time.Hour // its own state: nothing is waited for
	startActive(t, w, first)
	w.changeCluster(20, first)
	w.verifyTopic("first", true)
}

// TestDeploymentContinuesWithoutItsJournal: the owner is gone, so a new process is its successor and keeps the identity.
func TestDeploymentContinuesWithoutItsJournal(t *testing.T) {
	w := newWorld(t, 22, false)
	first := w.startNamed("first", "", nil)
	startActive(t, w, first)
	w.changeCluster(20, first)
	first.shutDown()
	w.changeCluster(20, nil)
	second := startActive(t, w, w.startNamed("second", "", nil))
	w.verifyTopic("first", true)
	if got, _, err := second.journal.Deployment(); err != nil || got != first.writer.deployment.id {
		t.Errorf("deployment %q, %v; want %q", got, err, first.writer.deployment.id)
	}
}

// TestCopyOfJournalDeposesOnce: the copy has the identity and counts as a restart; its original is then refused instead of
// taking the state back.
func TestCopyOfJournalDeposesOnce(t *testing.T) {
	w := newWorld(t, 23, false)
	original := startActive(t, w, w.startNamed("original", "", nil))
	w.changeCluster(20, original)
	original.shutDown()
	copied := vfs.NewMem()
	if _, err := vfs.Clone(original.fs, copied, "journal", "journal"); err != nil {
		t.Fatal(err)
	}
	running := w.startNamed("copy", "", copied)
	running.writer.heartbeat = time.Hour // as at a restart: nothing is waited for
	startActive(t, w, running)
	running.writer.heartbeat = testHeartbeat
	stop := running.runWriter()
	w.startNamed("original", "", original.fs).checkRefused(`exporter "copy" of deployment ` + original.writer.deployment.id)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestElectedOwnerIsNotReplacedByExporterWithoutElection, nor by one of another Lease.
func TestElectedOwnerIsNotReplacedByExporterWithoutElection(t *testing.T) {
	w := newWorld(t, 24, false)
	active := startActive(t, w, w.startNamed("a", "ns/g", nil))
	stop := active.runWriter()
	w.startNamed("lonely", "", nil).checkRefused(`exporter "a"`, "(Lease ns/g)")
	w.startNamed("stranger", "ns/h", nil).checkRefused(`"a"`, "the Lease ns/g")
	if err := stop(); err != nil {
		t.Errorf("the elected one was deposed: %v", err)
	}
	standby := w.startNamed("b", "ns/g", nil)
	standby.writer.heartbeat = time.Hour // the election decides: nothing is waited for
	startActive(t, w, standby)
	if standby.writer.deployment.id != active.writer.deployment.id {
		t.Errorf("deployment %q, want %q", standby.writer.deployment.id, active.writer.deployment.id)
	}
}

// TestStandbyKeepsDeploymentOfPurgedState: what it writes has to be known as the deployment's own later.
func TestStandbyKeepsDeploymentOfPurgedState(t *testing.T) {
	w := newWorld(t, 25, false)
	active := startActive(t, w, w.startNamed("a", "ns/g", nil))
	standby := w.startNamed("b", "ns/g", nil)
	if err := standby.writer.readStandby(t.Context()); err != nil {
		t.Fatal(err)
	}
	active.shutDown()
	w.bus.purgeState()
	if err := standby.takeOver(); err != nil {
		t.Fatal(err)
	}
	if standby.writer.deployment.id != active.writer.deployment.id {
		t.Errorf("deployment %q, want %q", standby.writer.deployment.id, active.writer.deployment.id)
	}
}

// TestStateAndJournalWithoutDeploymentAreContinued: those of exporters before 0.10 have none.
func TestStateAndJournalWithoutDeploymentAreContinued(t *testing.T) {
	for _, keepJournal := range []bool{true, false} {
		w := newWorld(t, 26, false)
		older := startActive(t, w, w.startNamed("a", "", nil))
		w.changeCluster(20, older)
		if err := older.journal.SetDeployment(t.Context(), "", 0); err != nil {
			t.Fatal(err)
		}
		older.shutDown()
		w.bus.log = slices.DeleteFunc(w.bus.log, func(e sinks.StateEntry) bool { return e.Key[0] == keyDeployment })
		fs := older.fs
		if !keepJournal {
			fs = nil
		}
		w.changeCluster(20, nil)
		newer := w.startNamed("a", "", fs)
		if keepJournal {
			newer.writer.heartbeat = time.Hour // its own state: nothing is waited for
		}
		startActive(t, w, newer)
		w.changeCluster(20, newer)
		w.verifyTopic("first", true)
		if id, _, err := newer.journal.Deployment(); id == "" || err != nil {
			t.Errorf("journal kept: %t: deployment %q, %v", keepJournal, id, err)
		}
	}
}

// TestAStateIsBoundToTheNameOfTheCluster because all keys and IDs begin with that.
func TestAStateIsBoundToTheNameOfTheCluster(t *testing.T) {
	w := newWorld(t, 25, false)
	first := w.startNamed("first", "ns/g", nil)
	startActive(t, w, first)
	w.changeCluster(20, first)
	first.shutDown()

	other := w.startNamed("other", "ns/g", nil)
	other.writer.opts.ClusterName = "edited"
	other.checkRefused(`the cluster name "`, `cluster.name is "edited"`)
	if err := other.writer.readStandby(t.Context()); refusalReason(err) == "" {
		t.Errorf("a standby under another name has no reason to be refused: %v", err)
	}
	startActive(t, w, w.startNamed("third", "ns/g", nil))
}
