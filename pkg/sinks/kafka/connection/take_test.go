package connection

import (
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// TestBatchesOfManyPartitionsGoTogetherAndThoseOfOneInOrder empties a full queue, request by request.
func TestBatchesOfManyPartitionsGoTogetherAndThoseOfOneInOrder(t *testing.T) {
	batch := func(partition int32, size int) *call {
		return &call{batch: protocol.RecordBatch{Topic: "a", Partition: partition, Bytes: make([]byte, size)}}
	}
	const large = maxRequestBytes/2 + 1
	c := &Connection{dialer: &Dialer{}, queue: []*call{
		batch(0, 1), batch(1, large), batch(0, 2), batch(2, large), batch(2, 1), batch(3, 1), batch(4, 2*maxRequestBytes),
	}}
	type sent struct {
		partition int32
		size      int
	}
	want := [][]sent{
		{{0, 1}, {1, large}, {3, 1}}, // partition 2 does not fit, so its later batch waits too
		{{0, 2}, {2, large}},
		{{2, 1}},
		{{4, 2 * maxRequestBytes}}, // goes alone
	}
	for i, w := range want {
		var got []sent
		for _, one := range c.dequeueRequest().calls {
			got = append(got, sent{one.batch.Partition, len(one.batch.Bytes)})
		}
		if !slices.Equal(got, w) {
			t.Errorf("request %d has %v, want %v", i, got, w)
		}
	}
	if r := c.dequeueRequest(); r != nil {
		t.Errorf("there is more: %v", r)
	}
}
