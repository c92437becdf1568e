package stream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestOnlyALeaderWithAMajorityIsTrusted(t *testing.T) {
	const never, now, before = 0, time.Second, 4 * time.Second
	for _, test := range []struct {
		name    string
		leader  string
		heard   []time.Duration // last contact of each other replica
		trusted bool
	}{
		{"one replica", "a", nil, true},
		{"all follow", "a", []time.Duration{now, now}, true},
		{"most follow", "a", []time.Duration{now, before}, true},
		{"most followed", "a", []time.Duration{before, before}, false},
		{"one follows, of five", "a", []time.Duration{now, before, before, never}, false},
		{"two follow, of five", "a", []time.Duration{now, before, now, never}, true},
		{"one follows, of four", "a", []time.Duration{now, before, before}, false},
		{"no contact yet", "a", []time.Duration{never, never}, false},
		{"no leader", "", []time.Duration{now, now, now}, false},
	} {
		cluster := &jetstream.ClusterInfo{Leader: test.leader}
		for _, ago := range test.heard {
			cluster.Replicas = append(cluster.Replicas, &jetstream.PeerInfo{Name: "b", Active: ago})
		}
		if err := checkLeader("K8S", cluster); err == nil != test.trusted {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := checkLeader("K8S", nil); err != nil {
		t.Errorf("a server without a cluster: %v", err)
	}
}
