package state

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

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
		Objects: table.size, Bytes: table.totalBytes(),
	}
	if err := w.opts.validate(&c, "", ""); err != nil {
		return r, err
	}
	if r.Resources, err = reportResources(table, c); err != nil {
		return r, err
	}
	for _, l := range c.lanes {
		r.Lanes = append(r.Lanes, ReportLane{l.sink, l.lane, l.position})
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
