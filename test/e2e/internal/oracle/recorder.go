package oracle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

// Recorder follows etcd while a test runs, because what is compacted can no longer be read. It is safe for concurrent use.
type Recorder struct {
	etcd      *Etcd
	resources []Resource
	cancel    context.CancelFunc
	running   sync.WaitGroup

	mu     sync.Mutex
	states map[Resource][]objectState // in the order of revisions
	upTo   map[Resource]int64
	failed error
}

// objectState is an object from a revision on; without a UID it does not exist.
type objectState struct {
	object   bus.Object
	uid      string
	revision int64
}

// Record begins to follow the resources at the newest revision.
func (e *Etcd) Record(ctx context.Context, resources []Resource) (*Recorder, error) {
	start, err := e.Revision(ctx)
	if err != nil {
		return nil, err
	}
	r := &Recorder{etcd: e, resources: resources, states: map[Resource][]objectState{}, upTo: map[Resource]int64{}}
	for _, resource := range resources {
		answer, err := e.client.Get(ctx, resource.prefix(), clientv3.WithPrefix(), clientv3.WithRev(start))
		if err != nil {
			return nil, err
		}
		for _, kv := range answer.Kvs {
			r.states[resource] = append(r.states[resource], objectState{resource.object(kv.Key), uidOf(kv.Value), kv.ModRevision})
		}
		slices.SortFunc(r.states[resource], func(a, b objectState) int { return cmp.Compare(a.revision, b.revision) })
	}
	ctx, r.cancel = context.WithCancel(ctx)
	for _, resource := range resources {
		r.running.Go(func() { r.follow(ctx, resource, start+1) })
	}
	return r, nil
}

// Stop ends the recording.
func (r *Recorder) Stop() {
	r.cancel()
	r.running.Wait()
}

// follow records a resource until ctx ends.
func (r *Recorder) follow(ctx context.Context, resource Resource, from int64) {
	answers := r.etcd.client.Watch(ctx, resource.prefix(), clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify())
	for answer := range answers {
		r.mu.Lock()
		if err := answer.Err(); err != nil && ctx.Err() == nil {
			r.failed = fmt.Errorf("record %s: %w", resource.prefix(), err)
		}
		for _, event := range answer.Events {
			s := objectState{object: resource.object(event.Kv.Key), revision: event.Kv.ModRevision}
			if event.Type == clientv3.EventTypePut {
				s.uid = uidOf(event.Kv.Value)
			}
			r.states[resource] = append(r.states[resource], s)
		}
		r.upTo[resource] = max(r.upTo[resource], answer.Header.Revision)
		r.mu.Unlock()
	}
}

// AwaitRecorded waits until everything up to now is recorded.
func (r *Recorder) AwaitRecorded(ctx context.Context) error {
	want, err := r.etcd.Revision(ctx)
	if err != nil {
		return err
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		if err := r.etcd.client.RequestProgress(ctx); err != nil {
			return err
		}
		r.mu.Lock()
		recorded, failed := true, r.failed
		for _, resource := range r.resources {
			recorded = recorded && r.upTo[resource] >= want
		}
		r.mu.Unlock()
		if recorded || failed != nil {
			return failed
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("record everything up to %d: %w", want, ctx.Err())
		}
	}
}

// anyUID is the form of UIDs. That of an object is the first one in its stored form: only its name and namespace precede it.
var anyUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

func uidOf(stored []byte) string { return string(anyUID.Find(stored)) }

// Sum is the number of objects and the digest over them, as docs/consuming.md defines it.
type Sum struct {
	Count  int
	Digest string
}

// SumsAt returns the sum over the objects of a resource that select accepts, at each of the revisions.
func (r *Recorder) SumsAt(resource Resource, revisions []int64, accepts func(bus.Object) bool) map[int64]Sum {
	r.mu.Lock()
	states := slices.Clone(r.states[resource])
	r.mu.Unlock()
	all, exist, words := map[int64]Sum{}, map[bus.Object]objectState{}, [4]uint64{}
	add := func(s objectState, sign uint64) {
		sum := sha256.Sum256([]byte(strings.Join([]string{s.object.Namespace, s.object.Name, s.uid, strconv.FormatInt(s.revision, 10)}, "/")))
		for i := range words {
			words[i] += sign * binary.BigEndian.Uint64(sum[8*i:])
		}
	}
	next := 0
	for _, revision := range slices.Compact(slices.Sorted(slices.Values(revisions))) {
		for ; next < len(states) && states[next].revision <= revision; next++ {
			s := states[next]
			if !accepts(s.object) {
				continue
			}
			if old, has := exist[s.object]; has {
				add(old, ^uint64(0))
				delete(exist, s.object)
			}
			if s.uid != "" {
				add(s, 1)
				exist[s.object] = s
			}
		}
		var digest []byte
		for _, word := range words {
			digest = binary.BigEndian.AppendUint64(digest, word)
		}
		all[revision] = Sum{len(exist), hex.EncodeToString(digest)}
	}
	return all
}
