package state

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// heartbeatInterval is how often the owner renews the deployment record.
	heartbeatInterval = 2 * time.Second
	// missedHeartbeats is how many the owner must have missed before an exporter that no Lease has chosen replaces it.
	missedHeartbeats = 5
)

// deploymentRecord names the deployment that a state belongs to, the value of keyDeployment. The owner renews it, which
// shows other exporters that it is alive.
type deploymentRecord struct {
	id        string // random, made at the first start; "" for a state of an exporter that had no such record
	renewedAt time.Time
}

func newDeploymentID() string { return rand.Text()[:13] } // 65 bits

func codeDeployment(f *form.Coder, d *deploymentRecord) {
	f.CodeText(&d.id)
	f.CodeMillis(&d.renewedAt)
}

// deployment is what this process knows of its deployment. Only the goroutine inside Follow, TakeOver or Run uses it.
type deployment struct {
	journal        *journal.Journal // nil for Inspect and Reset
	id             string           // as in the journal, or seen on standby; "" if not known yet
	lastGeneration uint64           // of the last take-over from this journal
	claimed        string           // the identity of the present or last claim
	lastOwner      Owner            // of the state, seen on standby, as in the journal: ID of its journal and generation
}

func loadDeployment(j *journal.Journal) (d deployment, err error) {
	if d.journal = j; j != nil {
		var failed error
		d.id, d.lastGeneration, err = j.Deployment()
		d.lastOwner.Journal, d.lastOwner.Generation, failed = j.LastOwner()
		err = errors.Join(err, failed)
	}
	return d, err
}

// recordOwner records the owner of a state in the journal. If there is no state later, it was lost, also for a later
// process.
func (d *deployment) recordOwner(ctx context.Context, o Owner) error {
	seen := Owner{Journal: o.Journal, Generation: o.Generation}
	if seen == d.lastOwner {
		return nil
	}
	if err := d.journal.SetLastOwner(ctx, seen.Journal, seen.Generation); err != nil {
		return err
	}
	d.lastOwner = seen
	return nil
}

// storeIdentity makes an identity that of this process's deployment, for good. generation is that of its take-over, 0 if it
// has not taken over.
func (d *deployment) storeIdentity(ctx context.Context, id string, generation uint64) error {
	if err := d.journal.SetDeployment(ctx, id, generation); err != nil {
		return err
	}
	d.id, d.lastGeneration = id, generation
	return nil
}

// heartbeatEntry is the record of the claimed identity, renewed now.
func (d *deployment) heartbeatEntry() sinks.StateEntry {
	return sinks.StateEntry{Key: []byte{keyDeployment}, Value: form.EncodeValue(nil, codeDeployment, &deploymentRecord{d.claimed, time.Now().UTC()})}
}

// wasLastOwner reports whether the state was last written from this journal, which one process at a time can open. A copy
// of the journal has the ID too, but not the generation once one of both has taken over again.
func (d *deployment) wasLastOwner(c stateContent) (bool, error) {
	id, err := d.journal.ID()
	last := c.meta.owner
	return id != "" && id == last.Journal && (d.id == "" || d.lastGeneration == last.Generation), err
}

// awaitAbandoned returns nil if no other exporter writes the state, and a *RefusedError if one does. Between exporters of
// one Lease their election decides.
//
// Without an election a deployment is one process. One that is new and meets an owner that is alive is another deployment:
// it gets an identity of its own, so that it does not take over when the owner restarts.
func (t *takeOver) awaitAbandoned(ctx context.Context, c stateContent) error {
	w := t.w
	if c.meta.version == 0 || w.opts.Lease != "" && w.opts.Lease == c.meta.lease {
		return nil
	}
	if own, err := w.deployment.wasLastOwner(c); err != nil || own {
		return err
	}
	alive, err := t.seesOwnerWrite(ctx)
	if err != nil || !alive {
		return err
	}
	if w.deployment.id == "" && w.opts.Lease == "" {
		if err := w.deployment.storeIdentity(ctx, newDeploymentID(), 0); err != nil {
			return err
		}
	}
	return &RefusedError{
		Reason: fmt.Sprintf("the replicated state is written by %s, which is running", c.describeOwner()),
		Remedy: "give each deployment a state.name of its own, or run its exporters with one election.lease; to replace that " +
			"exporter by this one, stop it and delete the journal of this one",
	}
}

// seesOwnerWrite reports whether the owner writes within the time of missedHeartbeats. It uses no clock but its own.
func (t *takeOver) seesOwnerWrite(ctx context.Context) (bool, error) {
	w := t.w
	timeout := missedHeartbeats * w.heartbeat
	w.log.Info("checking that the exporter that last wrote the replicated state has stopped", "timeout", timeout)
	first := w.mirror.table.ownerRecords()
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		if ratelimit.Sleep(ctx, min(followInterval, w.heartbeat)) != nil {
			return false, context.Cause(ctx)
		}
		if _, err := t.readValid(ctx); err != nil {
			return false, err
		}
		if w.mirror.table.ownerRecords() != first {
			return true, nil
		}
	}
	return false, nil
}

// ownerRecords are the records that change while an owner is alive.
func (t *table) ownerRecords() (all [3]string) {
	for i, key := range []byte{keyMeta, keyCheckpoint, keyDeployment} {
		all[i] = t.others[string(key)]
	}
	return all
}

// describeOwner names the owner of a state, for messages.
func (c *stateContent) describeOwner() string {
	text := fmt.Sprintf("exporter %q", c.meta.owner.Identity)
	if c.deployment.id != "" {
		text += fmt.Sprintf(" of deployment %s", c.deployment.id)
	}
	if c.meta.lease != "" {
		text += fmt.Sprintf(" (Lease %s)", c.meta.lease)
	}
	return text
}

// Report is the content of a state in a form for people and for JSON.
type Report struct {
	Version      uint64           `json:"version"` // of the format; 0: there is no state
	Lease        string           `json:"lease,omitempty"`
	Cluster      string           `json:"cluster,omitempty"` // UID
	Deployment   string           `json:"deployment,omitempty"`
	Owner        string           `json:"owner,omitempty"`   // identity
	Journal      string           `json:"journal,omitempty"` // ID of the owner's journal
	Generation   uint64           `json:"takeovers,omitempty"`
	Since        time.Time        `json:"since,omitzero"` // when the owner took over
	Complete     bool             `json:"complete"`
	Offset       uint64           `json:"offset"`          // of the owner's journal: everything up to here is in the state
	CheckpointAt time.Time        `json:"marked,omitzero"` // when the stored checkpoint was taken
	Objects      int              `json:"objects"`
	Bytes        int64            `json:"bytes"` // of all keys and values
	Resources    []ReportResource `json:"resources,omitempty"`
	Lanes        []ReportLane     `json:"lanes,omitempty"`
}

// ReportResource is a resource in a report.
type ReportResource struct {
	Name    string              `json:"name"`
	Objects int                 `json:"objects"`
	Scopes  []event.StoredScope `json:"scopes,omitempty"`
}

// ReportLane is a lane in a report.
type ReportLane struct {
	Sink     string             `json:"sink"`
	Lane     sinks.Lane         `json:"lane"`
	Position sinks.LanePosition `json:"place"` // from which the lane is read back at a take-over
}

// Inspect reads the whole state. A *RefusedError reports why this deployment must not use it; the report then has what could
// be read. It does not affect the owner.
func (w *Writer) Inspect(ctx context.Context) (r Report, err error) {
	c, err := w.mirror.readContent(ctx)
	if err != nil {
		return r, err
	}
	table := w.mirror.table // after the read, which may replace it
	o := c.meta.owner
	r = Report{
		Version: c.meta.version, Lease: c.meta.lease, Cluster: c.meta.cluster, Deployment: c.deployment.id, Owner: o.Identity,
		Journal: o.Journal, Generation: o.Generation, Since: o.Since, Complete: c.meta.complete, Offset: c.checkpoint.offset, CheckpointAt: c.checkpoint.takenAt,
		Objects: table.size,
	}
	for i := range shards {
		r.Bytes += int64(bytesOf(table.entriesOfPart(i)))
	}
	if err := w.opts.validate(&c, "", ""); err != nil {
		return r, err
	}
	if r.Resources, err = reportResources(table, c); err != nil {
		return r, err
	}
	for _, l := range c.lanes {
		r.Lanes = append(r.Lanes, ReportLane{l.sink, l.lane, l.tail.From})
	}
	slices.SortFunc(r.Lanes, func(a, b ReportLane) int {
		return strings.Compare(a.Sink+"\x00"+string(a.Lane), b.Sink+"\x00"+string(b.Lane))
	})
	return r, nil
}

func reportResources(table *table, c stateContent) (all []ReportResource, err error) {
	objects := map[uint64]int{}
	if err := table.eachKnown(func(n uint64, _ event.Known) error { objects[n]++; return nil }); err != nil {
		return nil, malformedState(err)
	}
	for n, resource := range c.resources {
		scopes := c.scopes[n]
		slices.SortFunc(scopes, func(a, b event.StoredScope) int { return strings.Compare(a.ID, b.ID) })
		all = append(all, ReportResource{resource.String(), objects[n], scopes})
		delete(objects, n)
	}
	for n := range objects {
		return all, malformedState(fmt.Errorf("%w: objects of an unknown resource %d", form.ErrMalformed, n))
	}
	slices.SortFunc(all, func(a, b ReportResource) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Reset deposes the owner and removes every entry but the lanes, which the next owner has to fence. It returns the number of
// removed entries. If the content is malformed, the lanes are removed too.
func (w *Writer) Reset(ctx context.Context) (removed int, err error) {
	if err := w.mirror.store.Claim(ctx, w.newClaim("")); err != nil {
		return 0, fmt.Errorf("claim the replicated state: %w", err)
	}
	if err := w.mirror.readStored(ctx); err != nil {
		return 0, err
	}
	table := w.mirror.table
	_, malformed := table.decodeContent()
	var entries []sinks.StateEntry
	for i := range shards {
		for _, e := range table.entriesOfPart(i) {
			if first := e.Key[0]; malformed == nil && (first == keyLane || first == keyProgress) {
				continue
			}
			entries = append(entries, sinks.StateEntry{Key: e.Key})
		}
	}
	for _, chunk := range splitBySize(entries, w.mirror.store.AtomicBytes()) {
		for _, e := range chunk {
			table.applyEntry(e)
		}
		if err := w.mirror.store.Append(ctx, chunk, false); err != nil {
			return removed, fmt.Errorf("write the replicated state: %w", err)
		}
		removed += len(chunk)
	}
	return removed, nil
}
