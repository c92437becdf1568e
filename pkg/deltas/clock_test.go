package deltas

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var leaseScope = Scope{ID: "leases", Cluster: "c", Resource: event.Resource{Group: "coordination.k8s.io", Resource: "leases"}}

// timed is a watch event of an object at a version, with times in Unix seconds; it is read at second 1000.
func timed(t watch.EventType, key, version string, created, deleting int64) Event {
	o := NewObject("kube-system", key)
	o.UID, o.ResourceVersion, o.ObservedAt, o.CreatedAt, o.DeletingAt = "u-"+key, version, time.Unix(1000, 0), created, deleting
	return Event{Type: t, Object: o}
}

// written makes the event that of a write with an entry in managedFields.
func written(e Event, at int64) Event {
	text := time.Unix(at, 0).UTC().Format(time.RFC3339)
	e.Object.Summary = string(AppendWriter(AppendParts(nil, Parts{}), 1, uint64(at), uint64(at), 5))
	e.Object.Names = string(AppendNames(nil, []byte("m"), []byte("Update"), nil, []byte(text)))
	return e
}

// timesOf returns the intervals of the changes that the events make, in seconds around what their source says.
func timesOf(t *testing.T, tr *Tracker, events ...Event) (all [][2]int64) {
	t.Helper()
	position := ""
	if tr.list == nil {
		position = events[len(events)-1].Object.ResourceVersion
	}
	o, err := tr.ObserveEvents(events, position)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range o.Changes {
		notBefore := int64(0)
		if !c.ChangedAt.NotBefore.IsZero() {
			notBefore = c.ChangedAt.NotBefore.Unix()
		}
		all = append(all, [2]int64{notBefore, c.ChangedAt.At.Unix()})
	}
	return all
}

func expectTimes(t *testing.T, got [][2]int64, want ...[2]int64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("change %d was made within %v, want %v", i, got[i], want[i])
		}
	}
}

// TestLeasesTellWhenADeleteWasMade that is read late: after an older renewal, and before a newer one.
func TestLeasesTellWhenADeleteWasMade(t *testing.T) {
	var clock Clock
	leases, pods := NewTracker(leaseScope, NewKnownSet(), nil, time.Now), NewTracker(podScope, NewKnownSet(), nil, time.Now)
	clock.ShareWith(leases, "")
	clock.ShareWith(pods, "")
	timesOf(t, leases, written(timed(watch.Added, "node", "10", 500, 0), 500))
	timesOf(t, leases, written(timed(watch.Modified, "node", "20", 500, 0), 510))
	timesOf(t, leases, written(timed(watch.Modified, "node", "30", 500, 0), 520))
	got := timesOf(t, pods, timed(watch.Added, "a", "12", 501, 0), timed(watch.Deleted, "b", "25", 0, 0), timed(watch.Deleted, "c", "35", 0, 0))
	expectTimes(t, got, [2]int64{499, 504}, [2]int64{508, 523}, [2]int64{518, 1000})
}

// TestAForgedTimeNarrowsNothing: one outside the interval of its neighbours does not count, and no other change heeds any.
func TestAForgedTimeNarrowsNothing(t *testing.T) {
	pods := NewTracker(podScope, NewKnownSet(), nil, time.Now)
	timesOf(t, pods, written(timed(watch.Added, "a", "10", 500, 0), 500), written(timed(watch.Added, "b", "11", 500, 0), 500))
	got := timesOf(t, pods,
		written(timed(watch.Modified, "a", "20", 500, 0), 100),  // long before
		written(timed(watch.Modified, "b", "21", 500, 0), 5000), // in the future
		timed(watch.Added, "c", "22", 600, 0),
		timed(watch.Deleted, "d", "23", 500, 700)) // its deletion was requested at 700
	expectTimes(t, got, [2]int64{498, 1000}, [2]int64{498, 1000}, [2]int64{598, 603}, [2]int64{698, 1000})
}

// TestAListTellsWhenTheLastWriteWasMade, unless that may have only removed something, which leaves no time. What was created
// since was written from then on.
func TestAListTellsWhenTheLastWriteWasMade(t *testing.T) {
	pods := NewTracker(podScope, NewKnownSet(), nil, func() time.Time { return time.Unix(1000, 0) })
	timesOf(t, pods, written(timed(watch.Added, "a", "10", 500, 0), 500), written(timed(watch.Added, "b", "20", 520, 0), 520),
		written(timed(watch.Added, "c", "30", 540, 0), 540))
	pods.StartList(List{Name: "list", Position: "90"})
	shrunk := written(timed(watch.Added, "b", "50", 520, 0), 620)
	shrunk.Object.Summary = string(AppendWriter(AppendParts(nil, Parts{}), 1, 620, 620, 4))
	got := timesOf(t, pods, written(timed(watch.Added, "a", "40", 500, 0), 600), shrunk,
		written(timed(watch.Added, "c", "60", 540, 0), 540), written(timed(watch.Added, "d", "70", 610, 0), 650))
	expectTimes(t, got, [2]int64{598, 603}, [2]int64{618, 1000}, [2]int64{538, 1000}, [2]int64{608, 653})
}

// TestADeleteThatOnlyAListShowsHasAWindow: from the last position to the list.
func TestADeleteThatOnlyAListShowsHasAWindow(t *testing.T) {
	pods := NewTracker(podScope, NewKnownSet(), nil, func() time.Time { return time.Unix(1000, 0) })
	timesOf(t, pods, timed(watch.Added, "a", "10", 500, 0), timed(watch.Added, "b", "20", 520, 0))
	pods.StartList(List{Name: "list", Position: "40"})
	timesOf(t, pods, timed(watch.Added, "b", "20", 520, 0), timed(watch.Added, "c", "30", 600, 0))
	o, _, err := pods.ObserveMissing()
	if err != nil || len(o.Changes) != 1 {
		t.Fatal(o, err)
	}
	want := event.ChangeTime{At: time.Unix(1000, 0), NotBefore: time.Unix(518, 0).UTC(), Source: event.TimeFromWatch}
	if got := o.Changes[0].ChangedAt; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestVersionsThatBeginAgainHaveNoOldTimes: a restored backup repeats versions.
func TestVersionsThatBeginAgainHaveNoOldTimes(t *testing.T) {
	pods := NewTracker(podScope, NewKnownSet(), nil, time.Now)
	timesOf(t, pods, timed(watch.Added, "a", "90", 900, 0))
	pods.NewGap("90", "50", "restored")
	expectTimes(t, timesOf(t, pods, timed(watch.Deleted, "z", "95", 0, 0)), [2]int64{0, 1000})
}

// TestTheTimesOfAClockAreBounded and the newest ones stay.
func TestTheTimesOfAClockAreBounded(t *testing.T) {
	var line timeline
	for i := range int64(3 * maxClockTimes) {
		line.add(time.Unix(i, 0).UTC().Format("120060102150405"), i)
	}
	if len(line) > maxClockTimes || line[len(line)-1].at != 3*maxClockTimes-1 {
		t.Errorf("%d times, the last is %v", len(line), line[len(line)-1])
	}
}
