package journal

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/journaltest"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) {
	leaks.Main(m)
}

var discardLogger = slog.New(slog.NewTextHandler(io.Discard, nil))

// podChange makes an updated Pod of about size bytes, alike but not equal to its neighbours, as in a real cluster.
func podChange(n, size int) *event.Change {
	r := rand.New(rand.NewPCG(uint64(n), 7))
	name := fmt.Sprintf("web-%08x-%05x", r.Uint32(), n%100000)
	uid := fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", r.Uint32(), n&0xffff, n&0xfff, n&0xffff, r.Uint64()>>16)
	var b strings.Builder
	fmt.Fprintf(&b, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":"team-%d","uid":%q,"resourceVersion":"%d","creationTimestamp":"2026-01-02T03:04:%02dZ","labels":{"app":"web","pod-template-hash":"%08x"}},"spec":{"containers":[`,
		name, n%17, uid, n, n%60, r.Uint32())
	for i := 0; b.Len() < size-300; i++ {
		fmt.Fprintf(&b, `{"name":"c%d","image":"registry.example.com/team/app-%d:v%d.%d","env":[{"name":"TOKEN_%d","value":"%016x"}],"resources":{"limits":{"cpu":"%dm","memory":"%dMi"}},"terminationMessagePath":"/dev/termination-log","imagePullPolicy":"IfNotPresent"},`,
			i, r.IntN(40), r.IntN(9), r.IntN(99), i, r.Uint64(), r.IntN(4000), r.IntN(4000))
	}
	fmt.Fprintf(&b, `{}]},"status":{"phase":"Running","podIP":"10.%d.%d.%d","containerStatuses":[{"containerID":"containerd://%016x%016x","restartCount":%d}]}}`,
		r.IntN(255), r.IntN(255), r.IntN(255), r.Uint64(), r.Uint64(), r.IntN(5))
	return &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "prod",
		Resource:  event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Namespace: fmt.Sprintf("team-%d", n%17), Name: name, UID: uid, ResourceVersion: fmt.Sprint(n), Generation: 1,
		ObservedAt: time.Unix(1_800_000_000+int64(n), int64(n%1_000_000_000)).UTC(),
		Actor:      &event.Actor{Manager: "kubelet", Operation: "Update", Subresource: "status", Time: "2026-01-02T03:04:05Z"},
		After:      []byte(b.String()),
	}
}

// resourceNamed makes a resource of its name.
func resourceNamed(name string) event.Resource {
	plural, group, _ := strings.Cut(name, ".")
	return event.Resource{Group: group, Resource: plural}
}

// known returns what is known of a resource, and its only scope record.
func (r *runningJournal) loadStored(name string) ([]event.Known, event.StoredScope) {
	r.t.Helper()
	var known []event.Known
	s, err := r.LoadResource(name, func(k event.Known) { known = append(known, k) })
	if err != nil || len(s.Scopes) > 1 {
		r.t.Fatalf("%s: %+v %v", name, s, err)
	}
	if len(s.Scopes) == 0 {
		return known, event.StoredScope{}
	}
	return known, s.Scopes[0]
}

func smallObservation(scope string, n int) event.Observation {
	c := journaltest.SmallChange(n)
	return event.Observation{
		Resource: resourceNamed(scope), Scope: scope, Changes: []*event.Change{c},
		Known:    []event.Known{{Key: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}},
		Position: c.ResourceVersion,
	}
}

// runningJournal is a journal with Run in progress.
type runningJournal struct {
	*Journal
	t    testing.TB
	stop context.CancelFunc
	done chan error
}

func openJournal(t testing.TB, opts Options) *Journal {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = "journal"
	}
	if opts.Logger == nil {
		opts.Logger = discardLogger
	}
	j, err := Open(opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return j
}

func startJournal(t testing.TB, opts Options) *runningJournal {
	t.Helper()
	return runJournal(t, openJournal(t, opts))
}

func runJournal(t testing.TB, j *Journal) *runningJournal {
	ctx, stop := context.WithCancel(context.Background())
	r := &runningJournal{Journal: j, t: t, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- j.Run(ctx) }()
	t.Cleanup(r.stopAndClose)
	return r
}

// stopAndClose stops Run and closes the journal. It may be called again.
func (r *runningJournal) stopAndClose() {
	r.t.Helper()
	if r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	if err := <-r.done; err != nil {
		r.t.Errorf("run: %v", err)
	}
	if err := r.Close(); err != nil {
		r.t.Errorf("close: %v", err)
	}
}

func (r *runningJournal) mustAppend(obs ...event.Observation) {
	r.t.Helper()
	for _, o := range obs {
		if err := r.Append(r.t.Context(), o); err != nil {
			r.t.Fatalf("append: %v", err)
		}
	}
}

func (r *runningJournal) mustSettle(sink string, c event.Cursor, dead ...event.DeadLetter) {
	r.t.Helper()
	if err := r.Settle(r.t.Context(), sink, c, dead); err != nil {
		r.t.Fatalf("settle: %v", err)
	}
}

// readTo reads everything after an offset up to and with another.
func (r *runningJournal) readTo(after, to uint64) []event.Record {
	r.t.Helper()
	var all []event.Record
	for after < to {
		records, err := r.Read(r.t.Context(), after)
		if err != nil {
			r.t.Fatalf("read after %d: %v", after, err)
		}
		for _, rec := range records {
			if rec.Offset != after+1 {
				r.t.Fatalf("offset %d follows %d", rec.Offset, after)
			}
			after = rec.Offset
			if after <= to {
				all = append(all, rec)
			}
		}
	}
	return all
}

// waitFor waits until the change with an offset is committed.
func (r *runningJournal) waitFor(newest uint64) {
	r.t.Helper()
	for at := r.Newest(); at < newest; at = r.Newest() {
		if _, err := r.Read(r.t.Context(), at); err != nil {
			r.t.Fatalf("wait for %d: %v", newest, err)
		}
	}
}

// hookedDisk calls functions, those that are not nil, before a file is created, written and synced; they may wait, or fail.
type hookedDisk struct {
	vfs.FS
	create func() error
	write  func(f vfs.File, p []byte) (n int, err error) // before an error, n bytes are written
	sync   func(name string) error
}

func (d *hookedDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.openHooked(name, func() (vfs.File, error) { return d.FS.Create(name, c) })
}

func (d *hookedDisk) ReuseForWrite(o, n string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.openHooked(n, func() (vfs.File, error) { return d.FS.ReuseForWrite(o, n, c) })
}

func (d *hookedDisk) openHooked(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if d.create != nil {
		if err := d.create(); err != nil {
			return nil, err
		}
	}
	f, err := open()
	return &hookedFile{f, d, name}, err
}

type hookedFile struct {
	vfs.File
	disk *hookedDisk
	name string
}

func (f *hookedFile) Write(p []byte) (int, error) {
	if f.disk.write != nil {
		if n, err := f.disk.write(f.File, p); err != nil {
			return n, err
		}
	}
	return f.File.Write(p)
}

func (f *hookedFile) Sync() error     { return f.syncHooked(f.File.Sync) }
func (f *hookedFile) SyncData() error { return f.syncHooked(f.File.SyncData) }

func (f *hookedFile) syncHooked(sync func() error) error {
	if f.disk.sync != nil {
		if err := f.disk.sync(f.name); err != nil {
			return err
		}
	}
	return sync()
}
