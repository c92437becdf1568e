package format

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var update = flag.Bool("update", false, "rewrite the samples in testdata; review each one before committing")

// namedChange is a change shown in docs/events.md.
type namedChange struct {
	name   string
	change event.Change
}

var deployments = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}

// sampleBody returns one version of the object that the samples use.
func sampleBody(version, generation, replicas string) []byte {
	return []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop",` +
		`"uid":"8c1f6b1e-5d0a-4a83-9a3e-2f0c6f5d7b11","resourceVersion":"` + version + `","generation":` + generation +
		`,"creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"replicas":` + replicas + `}}`)
}

// sampleChanges returns a change of each type, and the special cases.
func sampleChanges() []namedChange {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)
	object := event.Change{
		Cluster: "prod", Resource: deployments, Namespace: "shop", Name: "web", UID: "8c1f6b1e-5d0a-4a83-9a3e-2f0c6f5d7b11",
		ResourceVersion: "4711", Generation: 1, ObservedAt: at,
	}
	control := event.Change{Cluster: "prod", Resource: deployments, ObservedAt: at}
	second := at.Truncate(time.Second)
	read := event.ChangeTime{At: at, NotBefore: second.Add(-12 * time.Second), Source: event.TimeFromWatch}
	written := event.ChangeTime{At: at, NotBefore: second.Add(-2 * time.Second), Source: event.TimeFromManagedFields}

	added, updated, deleted, unseen, snapshot := object, object, object, object, object
	added.ChangedAt, updated.ChangedAt, deleted.ChangedAt = written, written, read
	unseen.ChangedAt = event.ChangeTime{At: at, Source: event.TimeFromWatch}
	added.Type, added.Delta, added.After = event.Added, event.DeltaAdded, sampleBody("4711", "1", "2")
	added.Actor = &event.Actor{Manager: "kubectl-create", Operation: "Update", Time: "2026-01-02T03:04:05Z"}
	updated.Type, updated.Delta, updated.ResourceVersion, updated.Generation = event.Updated, event.DeltaUpdated, "4715", 2
	updated.Actor = &event.Actor{Manager: "kubectl-scale", Operation: "Update", Subresource: "scale", Time: "2026-01-02T03:04:05Z"}
	updated.Class = event.ClassSpec
	updated.Changed = []byte(`[{"path":"/spec/replicas","from":2,"to":3},{"path":"/metadata/resourceVersion","from":"4711","to":"4715"},` +
		`{"path":"/metadata/generation","from":1,"to":2}]`)
	updated.Before, updated.After = sampleBody("4711", "1", "2"), sampleBody("4715", "2", "3")
	deleted.Type, deleted.Delta, deleted.ResourceVersion, deleted.Generation = event.Deleted, event.DeltaDeleted, "4720", 2
	deleted.Before = sampleBody("4720", "2", "3")
	unseen.Type, unseen.Delta, unseen.ResourceVersion, unseen.Generation = event.Deleted, event.DeltaDeleted, "4715", 0
	unseen.Coalesced, unseen.FinalStateUnknown, unseen.Pass = true, true, "4800"
	snapshot.Type, snapshot.Delta, snapshot.After = event.Snapshot, event.DeltaReplaced, sampleBody("4711", "1", "2")
	snapshot.Snapshot, snapshot.ListVersion = &event.SnapshotInfo{ID: "4712"}, "4713"
	left, synced := object, object
	left.Type, left.Delta, left.Left, left.Pass = event.Deleted, event.DeltaDeleted, true, "4790"
	left.Coalesced, left.FinalStateUnknown, left.Generation = true, true, 0
	synced.Type, synced.Delta, synced.Pass, synced.After = event.Sync, event.DeltaSync, "4791", sampleBody("4711", "1", "2")

	redacted := updated
	redacted.RedactionChanged, redacted.Changed, redacted.Before = true, nil, nil

	node := event.Change{
		Type: event.Updated, Delta: event.DeltaReplaced, Cluster: "prod", Name: "node-1", UID: "0b7d2c7a-7f43-43a9-8f0e-3f9a5f1c2d22",
		Resource: event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}, ResourceVersion: "4801", ObservedAt: at,
		Coalesced: true, Class: event.ClassStatus, Omitted: []string{"before", "status"},
		After: []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1","uid":"0b7d2c7a-7f43-43a9-8f0e-3f9a5f1c2d22","resourceVersion":"4801"}}`),
	}

	var digest event.Digest
	digest.Add(object.Namespace, object.Name, object.UID, object.ResourceVersion)
	begin, end, gap := control, control, control
	begin.Type, begin.Snapshot = event.SnapshotBegin, &event.SnapshotInfo{ID: "4712"}
	end.Type, end.ResourceVersion = event.SnapshotEnd, "4713"
	end.Snapshot = &event.SnapshotInfo{ID: "4712", Position: "4713", Count: 1, Digest: digest.String()}
	gap.Type, gap.ResourceVersion = event.Gap, "4800"
	gap.Gap = &event.GapInfo{From: "4715", To: "4800", Reason: "the API server no longer has the history since 4715"}

	part, partEnd, absent := control, control, object
	part.Type, part.Snapshot = event.PartialBegin, &event.SnapshotInfo{ID: "2kqv5zt7ma.4712"}
	partEnd.Type, partEnd.ResourceVersion = event.PartialEnd, "4713"
	partEnd.Snapshot = &event.SnapshotInfo{ID: "2kqv5zt7ma.4712", Position: "4713", Count: 1, Digest: digest.String()}
	absent.Type, absent.Delta, absent.Name, absent.UID, absent.Generation = event.Deleted, event.DeltaDeleted, "never", "", 0
	absent.ResourceVersion, absent.ListVersion, absent.Coalesced, absent.FinalStateUnknown = "4713", "4713", true, true
	absent.Snapshot, absent.Pass = part.Snapshot, "2kqv5zt7ma.4712/shop/never"

	replayed, replayEnd := updated, control
	replayed.Type, replayed.Pass = event.Replayed, "t4wz2mfe6k/4711"
	replayed.Replay = &event.ReplayInfo{ID: "t4wz2mfe6k", Of: updated.ID(), Type: event.Updated}
	replayEnd.Type, replayEnd.Replay = event.ReplayEnd, &event.ReplayInfo{ID: "t4wz2mfe6k", State: "done", Count: 1}

	complete, filtered := control, control
	complete.Type, complete.ResourceVersion = event.Watermark, "4723"
	complete.Watermark = &event.WatermarkInfo{Epoch: "4722", Sequence: 7, Algorithm: event.DigestAlgorithm, Count: 1, Digest: digest.String(), Lane: 2, Lanes: 6}
	filtered.Type, filtered.ResourceVersion = event.Watermark, "4723"
	filtered.Watermark = &event.WatermarkInfo{Epoch: "4722", Sequence: 7, Lanes: 1}

	attributed, ended, blind := object, object, control
	attributed.Type, attributed.ResourceVersion, attributed.Generation = event.Attributed, "4715", 0
	attributed.Attribution = &event.Attribution{Of: updated.ID(), Certainty: event.Exact, By: event.Identity{
		User: "alice", UID: "3f1c", Groups: []string{"shop-admins", "system:authenticated"}, Impersonator: "console",
		ImpersonationConstraint: "impersonate:user-info", Verb: "patch",
		Subresource: "scale", Received: at.Add(-3 * time.Millisecond), UserAgent: "kubectl/v1.37.1", SourceIPs: []string{"192.0.2.7"},
		AuditID: "6f1f6b0e-2f56-4cf5-a1f0-6c3d5a0b8d0e",
	}}
	ended.Type, ended.ResourceVersion, ended.Generation = event.Attributed, "4720", 0
	ended.Attribution = &event.Attribution{Of: deleted.ID(), Certainty: event.Exact,
		By:          event.Identity{User: "system:serviceaccount:kube-system:generic-garbage-collector", Verb: "patch", Received: at},
		RequestedBy: &event.Identity{User: "bob", Verb: "delete", Received: at.Add(-time.Second)},
	}
	blind.Type = event.AttributionGap
	blind.Gap = &event.GapInfo{From: "2026-01-02T03:04:05Z", To: "2026-01-02T03:09:05Z", Reason: "no audit event came, and 12 changes stayed without a name"}

	return []namedChange{
		{"added", added}, {"updated", updated}, {"deleted", deleted}, {"snapshot.begin", begin}, {"snapshot", snapshot},
		{"snapshot.end", end}, {"gap", gap}, {"updated-coalesced-omitted", node}, {"deleted-final-state-unknown", unseen},
		{"deleted-left", left}, {"sync", synced}, {"updated-redaction-changed", redacted},
		{"attributed", attributed}, {"attributed-requested-by", ended}, {"attribution.gap", blind},
		{"watermark", complete}, {"watermark-filtered", filtered},
		{"partial.begin", part}, {"deleted-absent", absent}, {"partial.end", partEnd},
		{"replayed", replayed}, {"replay.end", replayEnd},
	}
}

// renderRecord renders a record as stored on a bus: headers, one per line, followed by the value.
func renderRecord(f Format, c *event.Change) string {
	var b strings.Builder
	if f == CloudEvents {
		for _, a := range Attributes() {
			if value := a.Append(nil, c); len(value) > 0 {
				b.WriteString("ce_" + a.Name + ": " + string(value) + "\n")
			}
		}
		b.WriteString("content-type: " + f.ContentType() + "\n\n")
	}
	if f.NeedsFactsHeader(c) {
		b.WriteString("change: " + string(AppendFacts(nil, c)) + "\n\n")
	}
	if value := f.AppendValue(nil, c); len(value) > 0 {
		return b.String() + string(value) + "\n"
	}
	return b.String() + "(no value)\n"
}

// goldenFile returns the file that holds a sample.
func goldenFile(f Format, name string) string {
	return filepath.Join("testdata", f.String(), name+".txt")
}

func TestEveryFormatIsTheDocumentedForm(t *testing.T) {
	for _, f := range All() {
		for _, s := range sampleChanges() {
			file, got := goldenFile(f, s.name), renderRecord(f, &s.change)
			if *update {
				writeFile(t, file, got)
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("%s: got\n%swant\n%s", file, got, want)
			}
		}
	}
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
