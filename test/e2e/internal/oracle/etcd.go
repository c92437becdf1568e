package oracle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

const (
	registry  = "/registry/"
	opsAtOnce = 128 // of a transaction, which has a limit
)

// Etcd is a connection to the API server's etcd.
type Etcd struct {
	client *clientv3.Client
}

// Open connects to etcd.
func Open(endpoint string) (*Etcd, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	return &Etcd{client: client}, nil
}

// Close closes the connection.
func (e *Etcd) Close() error { return e.client.Close() }

// Revision returns the newest revision.
func (e *Etcd) Revision(ctx context.Context) (int64, error) {
	answer, err := e.client.Get(ctx, registry, clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

// Compact makes etcd forget everything before the newest revision.
func (e *Etcd) Compact(ctx context.Context) error {
	newest, err := e.Revision(ctx)
	if err != nil {
		return err
	}
	_, err = e.client.Compact(ctx, newest, clientv3.WithCompactPhysical())
	return err
}

// Undo deletes every key that was created after a revision, whatever has written it.
func (e *Etcd) Undo(ctx context.Context, start int64) error {
	created, err := e.client.Get(ctx, registry, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithMinCreateRev(start+1))
	if err != nil {
		return err
	}
	for keys := range slices.Chunk(created.Kvs, opsAtOnce) {
		deletes := make([]clientv3.Op, len(keys))
		for i, kv := range keys {
			deletes[i] = clientv3.OpDelete(string(kv.Key))
		}
		if _, err := e.client.Txn(ctx).Then(deletes...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

// State reads the newest revision of every object of the resources that exists.
func (e *Etcd) State(ctx context.Context, resources []Resource) ([]Revision, error) {
	var all []Revision
	for _, r := range resources {
		existing, err := e.existing(ctx, r)
		if err != nil {
			return nil, err
		}
		all = append(all, existing...)
	}
	return all, nil
}

func (e *Etcd) existing(ctx context.Context, r Resource, at ...clientv3.OpOption) (all []Revision, err error) {
	answer, err := e.client.Get(ctx, r.prefix(), append(at, clientv3.WithPrefix(), clientv3.WithKeysOnly())...)
	if err != nil {
		return nil, fmt.Errorf("objects below %s: %w", r.prefix(), err)
	}
	for _, kv := range answer.Kvs {
		all = append(all, Revision{Object: r.object(kv.Key), Revision: kv.ModRevision, Op: operation(kv)})
	}
	return all, nil
}

// History reads what happened to the resources after revision start up to and with revision end. It asks for nothing else:
// what other tests write to the same etcd may be gigabytes.
func (e *Etcd) History(ctx context.Context, resources []Resource, start, end int64) (*History, error) {
	return Past{}.Extend(ctx, e, resources, start, end)
}

// Past is what was read of each resource: hundreds of thousands of revisions take etcd minutes. One goroutine uses it.
type Past map[Resource]*History

// Extend is [Etcd.History], but reads only what it has not read before.
func (p Past) Extend(ctx context.Context, e *Etcd, resources []Resource, start, end int64) (*History, error) {
	h := &History{Start: start, End: end}
	for _, r := range resources {
		one := p[r]
		if one == nil || one.Start != start || one.End > end {
			existing, err := e.existing(ctx, r, clientv3.WithRev(start))
			if err != nil {
				return nil, err
			}
			one = &History{Start: start, End: start, Existing: existing}
		}
		delete(p, r) // in case of an error
		if one.End < end {
			next := &History{Start: one.End, End: end}
			if err := e.watch(ctx, next, r); err != nil {
				return nil, err
			}
			one.End, one.Revisions = end, append(one.Revisions, next.Revisions...)
		}
		p[r] = one
		h.Existing, h.Revisions = append(h.Existing, one.Existing...), append(h.Revisions, one.Revisions...)
	}
	slices.SortFunc(h.Revisions, func(a, b Revision) int { return cmp.Compare(a.Revision, b.Revision) })
	return h, nil
}

// watch adds the revisions of a resource. They end between two answers at the earliest, never within a revision. The watch
// has a stream of its own: on one that is shared, the progress that an earlier watch has asked for reaches this one before
// its events, and their absence passes for history.
func (e *Etcd) watch(ctx context.Context, h *History, r Resource) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watcher := clientv3.NewWatcher(e.client)
	defer watcher.Close() //nolint:errcheck // ctx ends it
	answers := watcher.Watch(ctx, r.prefix(), clientv3.WithPrefix(), clientv3.WithRev(h.Start+1), clientv3.WithProgressNotify())
	ask := time.NewTicker(50 * time.Millisecond)
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("history up to %d: %w", h.End, ctx.Err())
		case <-ask.C:
			// An answer has the progress of the watch, also where nothing happened.
			if err := watcher.RequestProgress(ctx); err != nil {
				return err
			}
		case answer, more := <-answers:
			if err := answer.Err(); err != nil {
				return fmt.Errorf("history after %d: %w", h.Start, err)
			}
			if !more {
				return fmt.Errorf("history after %d: the watch ended", h.Start)
			}
			if h.add(r, answer) {
				return nil
			}
		}
	}
}

// add stores the events of an answer and reports whether the history of the resource is complete.
func (h *History) add(r Resource, answer clientv3.WatchResponse) bool {
	for _, event := range answer.Events {
		if event.Kv.ModRevision > h.End {
			return true
		}
		h.Revisions = append(h.Revisions, revision(r.object(event.Kv.Key), event))
	}
	return answer.IsProgressNotify() && answer.Header.Revision >= h.End
}

func revision(o bus.Object, event *clientv3.Event) Revision {
	if event.Type == clientv3.EventTypeDelete {
		return Revision{Object: o, Revision: event.Kv.ModRevision, Op: Deleted}
	}
	return Revision{Object: o, Revision: event.Kv.ModRevision, Op: operation(event.Kv), Value: event.Kv.Value}
}

func operation(kv *mvccpb.KeyValue) Op {
	if kv.CreateRevision == kv.ModRevision {
		return Created
	}
	return Updated
}
