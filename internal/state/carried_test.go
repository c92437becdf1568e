package state

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestAWatermarkDoesNotFollowWhatIsNewer has lanes with an update and a deletion that a list revealed later, both beyond the
// position at which a successor begins: its watermarks stay away until they are the state of all that.
func TestAWatermarkDoesNotFollowWhatIsNewer(t *testing.T) {
	pods, jobs := resources["pods"], event.Resource{Group: "batch", Version: "v1", Resource: "jobs"}
	read := &tail{deliveredSet: newDeliveredSet(nil), objects: map[emittedRef]map[string]liveObject{}, resources: map[string]event.Resource{}}
	read.destinationNumber("")
	for _, c := range []*event.Change{
		{Type: event.Updated, Cluster: "c", Resource: pods, Name: "web", UID: "u", ResourceVersion: "217"},
		{Type: event.Deleted, Cluster: "c", Resource: jobs, Name: "old", UID: "v", ResourceVersion: "50", ListVersion: "400"},
	} {
		read.recordMessage("", c.EmittedRecord(), map[digest]emittedVersion{})
	}
	for _, watermark := range []struct {
		resource  event.Resource
		position  string
		contained bool
	}{{pods, "216", true}, {pods, "217", false}, {jobs, "399", true}, {jobs, "400", false}, {resources["deployments.apps"], "1", false}} {
		c := &event.Change{
			Type: event.Watermark, Cluster: "c", Resource: watermark.resource, ResourceVersion: watermark.position,
			Watermark: &event.WatermarkInfo{Epoch: "e", Sequence: 1},
		}
		if got := read.containsChange(sinks.Lane("any"), c); got != watermark.contained {
			t.Errorf("%s at %s: contained %t", watermark.resource, watermark.position, got)
		}
	}
}

// TestACarriedDeletionOutlivesTheLastVersionOfItsObject has a deletion that a list revealed: it has the version of the last
// state. Once the state has that state, but not the deletion, the deletion is still to be carried, else it is sent again.
func TestACarriedDeletionOutlivesTheLastVersionOfItsObject(t *testing.T) {
	object := objectRef{"pods", "shop/web"}
	carried := &tail{deliveredSet: newDeliveredSet(nil), objects: map[emittedRef]map[string]liveObject{}}
	carried.destinationNumber("topic")
	carried.recordObject(emittedRef{"topic", object}, liveObject{uid: "u", version: "217", deleted: true})
	for _, settled := range []struct {
		version uint64
		deleted bool
		removes bool
	}{{216, false, false}, {217, false, false}, {217, true, true}} {
		if removed := carried.removeUpTo(object, settled.version, settled.deleted); removed != settled.removes {
			t.Errorf("version %d, deleted %t: removed %t", settled.version, settled.deleted, removed)
		}
	}
}
