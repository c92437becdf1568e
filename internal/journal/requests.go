package journal

import (
	"context"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

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

// removeRequests removes the requests for which remove is true.
func (w *knownWrite) removeRequests(remove func(event.SnapshotRequest) bool) {
	for name, r := range w.allResources() {
		for i, s := range r.Scopes {
			if slices.ContainsFunc(s.SnapshotRequests(), remove) {
				w.editResource(name).Scopes[i].RemoveSnapshotRequests(remove)
			}
		}
	}
}
