package event

import (
	"maps"
	"testing"
)

func TestOnlyTheLanesThatLostSomethingGoBack(t *testing.T) {
	stored := Cursor{Low: 10, High: 30, Lanes: map[string]uint64{"slow": 10, "ahead": 35}, Layout: "l", State: []byte("s")}
	back := stored.RewindLanes(map[string]uint64{"lost": 5, "slow": 20, "ahead": 7})
	if want := map[string]uint64{"lost": 5, "slow": 10, "ahead": 7}; back.Low != 5 || back.High != 30 || !maps.Equal(back.Lanes, want) {
		t.Errorf("got %+v", back)
	}
	if back.Layout != stored.Layout || string(back.State) != "s" || len(stored.Lanes) != 2 {
		t.Errorf("the rest has changed: %+v, from %+v", back, stored)
	}
	if same := stored.RewindLanes(nil); same.Low != 10 || same.High != 30 || len(same.Lanes) != 2 {
		t.Errorf("nothing is lost, and the cursor is %+v", same)
	}
}
