package tap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestStatesStayWithinTheirBound(t *testing.T) {
	const most = 100 << 10
	s := newStates(most)
	pods := event.Resource{Resource: "pods"}
	for i := range 2000 {
		key := fmt.Sprintf("ns/%d", i)
		s.keepBodies(event.Observation{Resource: pods, Bodies: []event.Body{{Key: key, UID: key, Raw: []byte(`{"a":"` + strings.Repeat("x", i) + `"}`)}}})
		if _, ok, err := s.Body("pods", "ns/0"); err != nil || !ok {
			t.Fatalf("what is used all the time was forgotten after %d: %v", i, err)
		}
		if s.size > most {
			t.Fatalf("%d bytes are kept, at most %d are allowed", s.size, most)
		}
	}
	last, ok, err := s.Body("pods", "ns/1999")
	if err != nil || !ok || !strings.HasSuffix(string(last.Raw), `xx"}`) {
		t.Errorf("the last state is %v, %v, %v", last, ok, err)
	}
	s.keepBodies(event.Observation{Resource: pods, RemovedKeys: []string{"ns/1999"}})
	if _, ok, _ := s.Body("pods", "ns/1999"); ok {
		t.Error("a forgotten object has a state")
	}
	if err := s.DropBodies(t.Context(), "pods"); err != nil || s.size != 0 || s.order.Len() != 0 || len(s.byKey) != 0 {
		t.Errorf("after all was dropped: %v, %d bytes, %d states", err, s.size, s.order.Len())
	}
}
