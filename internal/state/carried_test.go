package state

import "testing"

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
