package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// Replay is a request to emit again, for one sink, what the journal keeps, with how far that is. It is JSON in the store.
type Replay struct {
	ID    string         `json:"id"`
	Sink  string         `json:"sink"`
	Since time.Time      `json:"since,omitzero"` // records that were observed before are left out
	Next  uint64         `json:"next"`           // offset of the next record to look at
	Last  uint64         `json:"last"`           // offset of the last one
	Count map[string]int `json:"count"`          // records that were emitted again, by resource

	State  string `json:"state,omitempty"`  // of its end records; "" before they are appended
	Reason string `json:"reason,omitempty"` // as well: why it ended early
}

// Total returns how many records of how many resources were emitted again.
func (r Replay) Total() (records, resources int) {
	for _, n := range r.Count {
		records += n
	}
	return records, len(r.Count)
}

// replayWriteRecords is how many records of the past one write of a replay looks at.
const replayWriteRecords = 4096

// ErrTrimmed is returned if the journal had to drop what a replay still had to read, because it has reached its bound.
var ErrTrimmed = errors.New("the journal has reached its bound and had to drop what was not emitted again yet")

// ReplayLedger holds the replays that have not been removed. What it still has to read is kept like what
// Options.KeepSettled keeps: unless the journal is half full. Safe for concurrent use.
type ReplayLedger struct {
	store *store
	queue *queue
	log   *Log
	space *spaceGuard

	mu  sync.Mutex
	all map[string]Replay // by ID, as the committer has written them: the last write may not be durable yet
}

// Replays returns all replays, by ID.
func (l *ReplayLedger) Replays() []Replay {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Collect(maps.Values(l.all))
	slices.SortFunc(all, func(a, b Replay) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// BeginReplay stores a replay, unless one with its ID is stored. Durable when it returns nil.
func (l *ReplayLedger) BeginReplay(ctx context.Context, r Replay) error {
	return l.submit(ctx, r.ID, func(g *group, _ Replay, stored bool) error {
		if stored {
			return nil
		}
		return l.write(g, r)
	})
}

// AdvanceReplay appends the next records of a replay for its sink, in one durable write with how far it is then, and
// returns that. It appends nothing while the journal is half full and a sink is behind, nor if the replay is elsewhere by
// now, and returns ErrTrimmed if there is nothing to read any more. After an error the write may still be made.
func (l *ReplayLedger) AdvanceReplay(ctx context.Context, r Replay) (Replay, error) {
	if r.Next > r.Last || !l.space.hasSpareSpace() {
		return r, nil
	}
	next := r
	if next.Count = maps.Clone(r.Count); next.Count == nil {
		next.Count = map[string]int{}
	}
	var again []*event.Change
	for bytes := 0; next.Next <= r.Last && next.Next-r.Next < replayWriteRecords && bytes < codec.FrameBytes; {
		records, err := l.log.Read(ctx, next.Next-1)
		switch {
		case err != nil:
			return r, err
		case records[0].Offset != next.Next:
			if current, _ := l.find(r.ID); current.Next != r.Next {
				return current, nil // a write that was given up has come
			}
			return r, ErrTrimmed
		}
		for _, record := range records[:min(uint64(len(records)), r.Last-next.Next+1)] {
			next.Next = record.Offset + 1
			if c := r.repeatRecord(record); c != nil {
				again = append(again, c)
				bytes += c.Size()
				next.Count[c.Resource.String()]++
			}
		}
	}
	err := l.submit(ctx, r.ID, func(g *group, current Replay, _ bool) error {
		if current.Next != r.Next || current.State != "" {
			next = current
			return nil
		}
		for _, c := range again {
			g.log.addChange(c)
		}
		return l.write(g, next)
	})
	if err != nil {
		return r, err
	}
	return next, nil
}

// repeatRecord returns what emits a record again; nil if the replay leaves it out.
func (r Replay) repeatRecord(record event.Record) *event.Change {
	c := record.Change
	isOfAnother := c.OnlySink != "" && c.OnlySink != r.Sink
	if c.Type.IsControl() || c.Type == event.Replayed || isOfAnother || c.Held.Skips(r.Sink) || c.Withheld != "" || c.ObservedAt.Before(r.Since) {
		return nil
	}
	again := c.Clone() // the frame is not kept in memory for it
	again.Replay = &event.ReplayInfo{ID: r.ID, Of: c.ID(), Type: c.Type}
	again.Type, again.OnlySink, again.Snapshot, again.Held = event.Replayed, r.Sink, nil, nil
	again.Pass = r.ID + "/" + strconv.FormatUint(record.Offset, 10)
	return again
}

// EndReplay appends the end of a replay for its sink, of each stored resource and of those that it had records of, in one
// durable write with its State and Reason, unless it has ended. It needs not have begun in this journal.
func (l *ReplayLedger) EndReplay(ctx context.Context, r Replay) error {
	return l.submit(ctx, r.ID, func(g *group, ended Replay, stored bool) error {
		switch {
		case !stored:
			ended = r
		case ended.State != "":
			return nil
		}
		ended.State, ended.Reason = r.State, r.Reason
		cluster, err := g.clusterName("")
		if err != nil {
			return err
		}
		resources := map[string]event.Resource{}
		for name := range ended.Count {
			resources[name] = event.ParseResourceName(name)
		}
		for name, stored := range g.known.allResources() {
			resources[name] = stored.Resource
		}
		for _, name := range slices.Sorted(maps.Keys(resources)) {
			g.log.addChange(&event.Change{
				Type: event.ReplayEnd, Cluster: cluster, Resource: resources[name], ObservedAt: time.Now().UTC(), OnlySink: ended.Sink,
				Replay: &event.ReplayInfo{ID: ended.ID, State: ended.State, Count: ended.Count[name], Reason: ended.Reason},
			})
		}
		return l.write(g, ended)
	})
}

// RenameReplaySink has a replay continue for the name that its sink has now. Durable when it returns nil.
func (l *ReplayLedger) RenameReplaySink(ctx context.Context, id, sink string) error {
	return l.submit(ctx, id, func(g *group, r Replay, stored bool) error {
		if !stored {
			return nil
		}
		r.Sink = sink
		return l.write(g, r)
	})
}

// RemoveReplay removes a replay. Durable when it returns nil.
func (l *ReplayLedger) RemoveReplay(ctx context.Context, id string) error {
	return l.submit(ctx, id, func(g *group, _ Replay, _ bool) error {
		g.batch.removeKey(codec.KeyReplay(id))
		l.update(func() { delete(l.all, id) })
		return nil
	})
}

// submit has the committer decide on a replay as it is then. A caller that gives up waiting does not know whether its write
// is made, so what it knew of the replay may be the past.
func (l *ReplayLedger) submit(ctx context.Context, id string, decide func(g *group, current Replay, stored bool) error) error {
	return l.queue.submit(ctx, func(g *group) error {
		current, stored := l.find(id)
		return decide(g, current, stored)
	}, nil)
}

func (l *ReplayLedger) find(id string) (r Replay, stored bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, stored = l.all[id]
	return r, stored
}

func (l *ReplayLedger) write(g *group, r Replay) error {
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	g.batch.putKey(codec.KeyReplay(r.ID), value)
	l.update(func() { l.all[r.ID] = r })
	return nil
}

// update changes what is in memory, and what the log keeps for it.
func (l *ReplayLedger) update(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	from := uint64(0)
	for _, r := range l.all {
		if r.State == "" && r.Next <= r.Last && (from == 0 || r.Next < from) {
			from = r.Next
		}
	}
	l.log.replayed.Store(from)
}

func (l *ReplayLedger) loadFromStore() error {
	all := map[string]Replay{}
	err := l.store.forEachKey(codec.KeyReplay(""), func(_, value []byte) error {
		var r Replay
		if err := json.Unmarshal(value, &r); err != nil {
			return fmt.Errorf("%w: replay: %w", form.ErrMalformed, err)
		}
		all[r.ID] = r
		return nil
	})
	l.update(func() { l.all = all })
	return err
}

// forget drops from memory what a seed has dropped.
func (l *ReplayLedger) forget() { l.update(func() { clear(l.all) }) }

// OldestRecord returns the oldest change that can be read, without its bodies; false if there is none.
func (l *Log) OldestRecord(ctx context.Context) (record event.Record, exists bool, err error) {
	extent := l.currentExtent()
	if extent.oldest > extent.newest {
		return record, false, nil
	}
	records, err := l.ReadWithoutBodies(ctx, extent.oldest-1)
	if err != nil {
		return record, false, err
	}
	return records[0], true, nil
}

// RequestedSnapshot is a snapshot of one scope that is requested for one sink.
type RequestedSnapshot struct {
	Resource, Scope string
	event.SnapshotRequest
}

// RequestedSnapshots returns all snapshots that are requested, in order of resources and scopes. It shows what is committed.
func (k *KnownObjects) RequestedSnapshots() (all []RequestedSnapshot) {
	for _, stored := range k.storedResources() {
		for _, s := range stored.Scopes {
			for _, r := range s.SnapshotRequests() {
				all = append(all, RequestedSnapshot{Resource: stored.Resource.String(), Scope: s.ID, SnapshotRequest: r})
			}
		}
	}
	return all
}

// RequestSnapshots requests a snapshot of each stored scope that requests has by ID, and returns their number. A scope that
// has the request already keeps it. Durable when it returns nil; ordered with Append.
func (k *KnownObjects) RequestSnapshots(ctx context.Context, requests map[string]event.SnapshotRequest) (scopes int, err error) {
	request := func(g *group) error {
		scopes = g.known.requestSnapshots(func(scope string) (event.SnapshotRequest, bool) {
			r, requested := requests[scope]
			return r, requested
		})
		return nil
	}
	if err := k.queue.submit(ctx, request, nil); err != nil {
		return 0, err
	}
	return scopes, nil
}

// RemoveRequestedSnapshots removes the requests for which remove is true. Durable when it returns nil; ordered with Append.
func (k *KnownObjects) RemoveRequestedSnapshots(ctx context.Context, remove func(event.SnapshotRequest) bool) error {
	return k.queue.submit(ctx, func(g *group) error { g.known.removeRequests(remove); return nil }, nil)
}

// requestSnapshots adds requests to the scopes that requestOf has one of by ID, and returns their number.
func (w *knownWrite) requestSnapshots(requestOf func(scope string) (event.SnapshotRequest, bool)) (scopes int) {
	for name, stored := range w.allResources() {
		for i, s := range stored.Scopes {
			if r, requested := requestOf(s.ID); requested {
				w.editResource(name).Scopes[i].AddSnapshotRequests(r)
				scopes++
			}
		}
	}
	return scopes
}

func (w *knownWrite) removeRequests(remove func(event.SnapshotRequest) bool) {
	for name, r := range w.allResources() {
		for i, s := range r.Scopes {
			if slices.ContainsFunc(s.SnapshotRequests(), remove) {
				w.editResource(name).Scopes[i].RemoveSnapshotRequests(remove)
			}
		}
	}
}
