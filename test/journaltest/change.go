package journaltest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var (
	types   = []event.Type{"", event.Added, event.Updated, event.Deleted, event.Snapshot, event.Gap, event.SnapshotBegin, event.SnapshotEnd, event.Sync, event.Attributed, event.AttributionGap, event.Watermark, event.PartialBegin, event.PartialEnd, event.Replayed, event.ReplayEnd}
	deltas  = []event.Delta{"", event.DeltaAdded, event.DeltaUpdated, event.DeltaDeleted, event.DeltaReplaced, event.DeltaSync}
	classes = []event.Class{"", event.ClassDeleting, event.ClassSpec, event.ClassStatus, event.ClassMetadata}
)

// SmallChange makes a change of a few dozen bytes.
func SmallChange(n int) *event.Change {
	return &event.Change{
		Type: event.Updated, Delta: event.DeltaUpdated, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Name: fmt.Sprintf("p%d", n%7), UID: fmt.Sprintf("u%d", n%7), ResourceVersion: fmt.Sprint(n),
		ObservedAt: time.Unix(int64(n), 5).UTC(), After: fmt.Appendf(nil, `{"n":%d}`, n),
	}
}

// RandomChange sets every field of a change at random, also to values no exporter would make.
func RandomChange(r *rand.Rand) *event.Change {
	str := func() string {
		b := make([]byte, r.IntN(12))
		for i := range b {
			b[i] = byte(r.UintN(256))
		}
		return string(b)
	}
	list := func() []string {
		l := make([]string, r.IntN(4))
		for i := range l {
			l[i] = str()
		}
		return l
	}
	body := func() []byte {
		if r.IntN(3) == 0 {
			return nil
		}
		return append([]byte{}, str()...)
	}
	c := &event.Change{
		Type: types[r.IntN(len(types))], Delta: deltas[r.IntN(len(deltas))], Cluster: str(),
		Resource:  event.Resource{Group: str(), Version: str(), Resource: str(), Kind: str()},
		Namespace: str(), Name: str(), UID: str(), ResourceVersion: str(), Generation: r.Int64() - r.Int64(),
		Coalesced: r.IntN(2) == 0, FinalStateUnknown: r.IntN(2) == 0, Before: body(), After: body(),
	}
	if r.IntN(4) > 0 {
		c.ObservedAt = time.Unix(r.Int64N(1<<40)-1<<39, r.Int64N(1e9)).UTC()
	}
	if r.IntN(3) == 0 {
		c.ChangedAt = event.ChangeTime{At: c.ObservedAt, NotBefore: time.Unix(r.Int64N(1<<40), 0).UTC(), Source: event.TimeSource(str())}
	}
	if r.IntN(5) == 0 {
		c.Type, c.Delta = event.Type(str()), event.Delta(str())
	}
	if r.IntN(2) == 0 {
		c.Actor = &event.Actor{Manager: str(), Operation: str(), Subresource: str(), Time: str()}
	}
	if r.IntN(2) == 0 {
		c.Class = classes[r.IntN(len(classes))]
	}
	if r.IntN(5) == 0 {
		c.Class = event.Class(str())
	}
	if r.IntN(3) == 0 {
		c.Snapshot = &event.SnapshotInfo{ID: str(), Position: str(), Count: r.Int() - r.Int(), Digest: str()}
	}
	if r.IntN(3) == 0 {
		c.Watermark = &event.WatermarkInfo{
			Epoch: str(), Sequence: r.Uint64(), Algorithm: str(), Count: r.Int() - r.Int(), Digest: str(),
			Lane: r.Int() - r.Int(), Lanes: r.Int() - r.Int(), Sinks: list(),
		}
	}
	if r.IntN(3) == 0 {
		c.Held = &event.HeldInfo{Sinks: list(), Wait: time.Duration(r.Int64() - r.Int64()), Released: r.IntN(2) == 0, Unknown: str()}
	}
	if r.IntN(3) == 0 {
		c.Replay = &event.ReplayInfo{
			ID: str(), Of: str(), Type: types[r.IntN(len(types))], State: str(), Count: r.Int() - r.Int(), Reason: str(),
		}
	}
	if r.IntN(3) == 0 {
		c.Changed = append([]byte{}, str()...)
	}
	if r.IntN(3) == 0 {
		c.Omitted, c.Withheld = list(), str()
	}
	if r.IntN(3) == 0 {
		c.Left, c.RedactionChanged, c.Pass = true, true, str()
	}
	if r.IntN(3) == 0 {
		c.Gap = &event.GapInfo{From: str(), To: str(), Reason: str(), Sink: str()}
	} else {
		c.OnlySink = str()
	}
	if r.IntN(2) == 0 {
		c.Previous, c.ListVersion = str(), str()
	}
	if r.IntN(3) == 0 {
		c.Stamp = &event.Stamp{User: str(), Replaced: str()}
	}
	if r.IntN(4) == 0 {
		identity := func() event.Identity {
			return event.Identity{
				User: str(), UID: str(), Groups: list(), Impersonator: str(), ImpersonationConstraint: str(), Verb: str(), Subresource: str(),
				Received: time.Unix(r.Int64N(1<<40), r.Int64N(1e9)).UTC(), UserAgent: str(), SourceIPs: list(), AuditID: str(),
			}
		}
		c.Attribution = &event.Attribution{Of: str(), Certainty: str(), By: identity()}
		if r.IntN(2) == 0 {
			asked := identity()
			c.Attribution.RequestedBy = &asked
		}
	}
	return c
}
