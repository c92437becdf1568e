package state

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Report is what a state says, for people.
type Report struct {
	Version      uint64           `json:"version"` // of the format; 0: there is no state
	Lease        string           `json:"lease,omitempty"`
	Cluster      string           `json:"cluster,omitempty"`
	Owner        string           `json:"owner,omitempty"` // identity
	Journal      string           `json:"journal,omitempty"`
	Generation   uint64           `json:"takeovers,omitempty"`
	Since        time.Time        `json:"since,omitzero"`
	Complete     bool             `json:"complete"`
	Offset       uint64           `json:"offset"` // of the owner's journal: everything up to here is in the state
	CheckpointAt time.Time        `json:"marked,omitzero"`
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
	Sink  string             `json:"sink"`
	Lane  sinks.Lane         `json:"lane"`
	Place sinks.LanePosition `json:"place"`
}

// Inspect reads the state whole, and says what is wrong with it for this deployment in a *RefusedError; what could be read is
// reported all the same. It takes nothing away from whoever works.
func (k *Writer) Inspect(ctx context.Context) (r Report, err error) {
	if err := k.readStored(ctx); err != nil {
		return r, err
	}
	c, err := k.table.decodeContent()
	if err != nil {
		return r, malformedState(err)
	}
	o := c.meta.owner
	r = Report{
		Version: c.meta.version, Lease: c.meta.lease, Cluster: c.meta.cluster, Owner: o.Identity, Journal: o.Journal, Generation: o.Generation,
		Since: o.Since, Complete: c.meta.complete, Offset: c.mark.offset, CheckpointAt: c.mark.takenAt, Objects: k.table.size, Bytes: k.table.totalBytes(),
	}
	if err := k.validateOwner(c, ""); err != nil {
		return r, err
	}
	objects := map[uint64]int{}
	if err := k.table.eachKnown(func(n uint64, _ event.Known) error { objects[n]++; return nil }); err != nil {
		return r, malformedState(err)
	}
	for n, resource := range c.resources {
		scopes := c.scopes[n]
		slices.SortFunc(scopes, func(a, b event.StoredScope) int { return strings.Compare(a.ID, b.ID) })
		r.Resources = append(r.Resources, ReportResource{resource.String(), objects[n], scopes})
		delete(objects, n)
	}
	for n := range objects {
		return r, malformedState(fmt.Errorf("%w: objects of a resource %d that is not there", errMalformed, n))
	}
	for _, l := range c.lanes {
		r.Lanes = append(r.Lanes, ReportLane{l.sink, l.lane, l.place})
	}
	slices.SortFunc(r.Resources, func(a, b ReportResource) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Lanes, func(a, b ReportLane) int {
		return strings.Compare(a.Sink+"\x00"+string(a.Lane), b.Sink+"\x00"+string(b.Lane))
	})
	return r, nil
}

// totalBytes are those of all keys and values.
func (t *table) totalBytes() (n int64) {
	for i := range shards {
		for _, e := range t.entriesOfPart(i, shards) {
			n += int64(len(e.Key) + len(e.Value))
		}
	}
	return n
}

// Reset takes the state away from whoever works and removes all of it but the lanes, which whoever works next has to fence.
// It returns how many entries it removed.
func (k *Writer) Reset(ctx context.Context) (removed int, err error) {
	if err := k.store.Claim(ctx, k.newClaim("")); err != nil {
		return 0, fmt.Errorf("claim the replicated state: %w", err)
	}
	if err := k.readStored(ctx); err != nil {
		return 0, err
	}
	_, unreadable := k.table.decodeContent()
	var entries []sinks.StateEntry
	for i := range shards {
		for _, e := range k.table.entriesOfPart(i, shards) {
			if first := e.Key[0]; first == keyLane && unreadable == nil || first == keyProgress && unreadable == nil {
				continue
			}
			entries = append(entries, sinks.StateEntry{Key: e.Key})
		}
	}
	for chunk := range slices.Chunk(entries, 4096) {
		for _, e := range chunk {
			k.table.applyEntry(e)
		}
		if err := k.store.Write(ctx, chunk); err != nil {
			return removed, fmt.Errorf("write the replicated state: %w", err)
		}
		removed += len(chunk)
	}
	return removed, nil
}
