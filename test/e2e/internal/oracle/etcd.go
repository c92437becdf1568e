package oracle

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

const registry = "/registry/"

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

// State reads the newest revision of every object of the resources that exists.
func (e *Etcd) State(ctx context.Context, resources []Resource) ([]Revision, error) {
	answer, err := e.client.Get(ctx, registry, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	var all []Revision
	for _, kv := range answer.Kvs {
		if o, ours := object(resources, string(kv.Key)); ours {
			all = append(all, Revision{Object: o, Revision: kv.ModRevision, Op: operation(kv)})
		}
	}
	return all, nil
}

// History reads what happened to the resources after revision start up to and with revision end.
func (e *Etcd) History(ctx context.Context, resources []Resource, start, end int64) (*History, error) {
	h := &History{Start: start, End: end}
	answer, err := e.client.Get(ctx, registry, clientv3.WithPrefix(), clientv3.WithRev(start), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("state at revision %d: %w", start, err)
	}
	for _, kv := range answer.Kvs {
		if o, ours := object(resources, string(kv.Key)); ours {
			h.Existing = append(h.Existing, Revision{Object: o, Revision: kv.ModRevision, Op: operation(kv)})
		}
	}
	if start == end {
		return h, nil
	}
	return h, e.watch(ctx, h, resources)
}

// watch fills in the revisions. The history ends between two answers at the earliest, never within a revision.
func (e *Etcd) watch(ctx context.Context, h *History, resources []Resource) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := e.client.Watch(ctx, registry, clientv3.WithPrefix(), clientv3.WithRev(h.Start+1), clientv3.WithProgressNotify())
	ask := time.NewTicker(50 * time.Millisecond)
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("history up to %d: %w", h.End, ctx.Err())
		case <-ask.C:
			// An answer says how far the watch has come, also where nothing happened.
			if err := e.client.RequestProgress(ctx); err != nil {
				return err
			}
		case answer, more := <-answers:
			if err := answer.Err(); err != nil {
				return fmt.Errorf("history after %d: %w", h.Start, err)
			}
			if !more {
				return fmt.Errorf("history after %d: the watch ended", h.Start)
			}
			if h.add(resources, answer) {
				return nil
			}
		}
	}
}

// add takes the events of an answer and says whether the history is complete.
func (h *History) add(resources []Resource, answer clientv3.WatchResponse) bool {
	for _, event := range answer.Events {
		if event.Kv.ModRevision > h.End {
			return true
		}
		o, ours := object(resources, string(event.Kv.Key))
		if !ours {
			continue
		}
		h.Revisions = append(h.Revisions, revision(o, event))
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
