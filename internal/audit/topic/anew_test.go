package topic_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// makeAnew deletes the topic and creates it with another number of partitions.
func (r *reading) makeAnew(partitions int32) {
	r.t.Helper()
	of := kmsg.NewDeleteTopicsRequestTopic()
	of.Topic = kmsg.StringPtr(name)
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.Topics, request.TopicNames, request.TimeoutMillis = []kmsg.DeleteTopicsRequestTopic{of}, []string{name}, 10_000
	if _, err := request.RequestWith(r.t.Context(), r.client); err != nil {
		r.t.Fatal(err)
	}
	r.create(partitions)
	r.client.PurgeTopicsFromClient(name) // which takes one of another ID for a mistake
}

// create creates the topic, once one of its name is gone for good.
func (r *reading) create(partitions int32) {
	r.t.Helper()
	of := kmsg.NewCreateTopicsRequestTopic()
	of.Topic, of.NumPartitions, of.ReplicationFactor = name, partitions, 1
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = []kmsg.CreateTopicsRequestTopic{of}
	r.await("the topic is created", func() bool {
		answer, err := request.RequestWith(r.t.Context(), r.client)
		return err == nil && answer.Topics[0].ErrorCode == 0
	})
}

// grow adds partitions.
func (r *reading) grow(partitions int32) {
	r.t.Helper()
	of := kmsg.NewCreatePartitionsRequestTopic()
	of.Topic, of.Count = name, partitions
	request := kmsg.NewPtrCreatePartitionsRequest()
	request.Topics, request.TimeoutMillis = []kmsg.CreatePartitionsRequestTopic{of}, 10_000
	if _, err := request.RequestWith(r.t.Context(), r.client); err != nil {
		r.t.Fatal(err)
	}
	r.client.PurgeTopicsFromClient(name) // it knows how many there were
}

// ends stops a reader.
func (r *reading) ends(stop func() error) {
	r.t.Helper()
	if err := stop(); err == nil || !strings.Contains(err.Error(), "canceled") {
		r.t.Fatal(err)
	}
}

func (r *reading) says(words string) {
	r.t.Helper()
	r.await("a loss is said: "+words, func() bool {
		for _, reason := range r.lost {
			if strings.Contains(reason, words) {
				return true
			}
		}
		return false
	})
}

// TestATopicThatWasMadeAnewIsReadFromItsBeginning has another topic of that name hold more records than were read of the one
// before, so that no offset tells them apart.
func TestATopicThatWasMadeAnewIsReadFromItsBeginning(t *testing.T) {
	for what, away := range map[string]bool{"while it is read": false, "while nobody reads": true} {
		t.Run(what, func(t *testing.T) {
			r := newReading(t)
			r.isReadAfterItWasMadeAnew(away)
		})
	}
}

func (r *reading) isReadAfterItWasMadeAnew(away bool) {
	r.t.Helper()
	stop := r.run()
	r.begun()
	r.write(0, "a", "b")
	r.has("a", "b")
	if away {
		r.ends(stop)
	}
	r.makeAnew(2)
	r.write(0, "c", "d", "e", "f")
	if away {
		stop = r.run()
	}
	r.has("a", "b", "c", "d", "e", "f")
	r.says("made anew")
	r.ends(stop)
	r.write(0, "g")
	stop = r.run()
	r.has("a", "b", "c", "d", "e", "f", "g")
	r.ends(stop)
	if len(r.lost) != 1 {
		r.t.Errorf("lost %q", r.lost)
	}
}

// TestATopicThatWasMadeAnewBeforeAnythingWasReadOfItIsNoticed knows the topic by a record that it did not take.
func TestATopicThatWasMadeAnewBeforeAnythingWasReadOfItIsNoticed(t *testing.T) {
	r := newReading(t)
	r.write(0, "old", "old", "old")
	stop := r.run()
	r.await("it is known", func() bool { return strings.HasPrefix(r.places["kafka:audit/0"], "3 2 ") })
	r.ends(stop)
	r.makeAnew(2)
	r.write(0, "c", "d", "e", "f")
	stop = r.run()
	r.has("c", "d", "e", "f")
	r.says("made anew")
	r.ends(stop)
}

func TestATopicThatIsShorterThanItWasIsReadFromItsBeginning(t *testing.T) {
	r := newReading(t)
	stop := r.run()
	r.begun()
	r.write(0, "a", "b", "c")
	r.has("a", "b", "c")
	r.ends(stop)
	r.makeAnew(2)
	r.write(0, "d")
	stop = r.run()
	r.has("a", "b", "c", "d")
	r.says("made anew, or has lost records")
	r.ends(stop)
}

// TestAddedPartitionsAreReadFromTheirBeginning adds one while the topic is read, and one while nobody reads.
func TestAddedPartitionsAreReadFromTheirBeginning(t *testing.T) {
	r := newReading(t)
	stop := r.run()
	r.begun()
	r.grow(3)
	r.write(2, "a")
	r.has("a")
	r.ends(stop)
	r.grow(4)
	r.write(3, "b")
	stop = r.run()
	r.has("a", "b")
	r.ends(stop)
	if len(r.lost) > 0 {
		t.Errorf("lost %q", r.lost)
	}
}

// TestPartitionsThatAreGoneAreSaidToBeLost makes the topic anew with fewer partitions, while it is read and while nobody
// reads, and sees the rest of it being read.
func TestPartitionsThatAreGoneAreSaidToBeLost(t *testing.T) {
	for what, away := range map[string]bool{"while it is read": false, "while nobody reads": true} {
		t.Run(what, func(t *testing.T) {
			r := newReading(t)
			stop := r.run()
			r.begun()
			r.write(1, "a")
			r.has("a")
			if away {
				r.ends(stop)
			}
			r.makeAnew(1)
			r.write(0, "b")
			if away {
				stop = r.run()
			}
			r.has("a", "b")
			r.says("partition 1 of the audit topic audit is gone")
			r.await("the rest can be read", func() bool { status, _ := r.reader.Status(); return status.OK() })
			r.ends(stop)
		})
	}
}

func TestARecordWithoutAValueIsNoLoss(t *testing.T) {
	r := newReading(t)
	stop := r.run()
	r.begun()
	if err := r.client.ProduceSync(t.Context(), &kgo.Record{Topic: name, Partition: 0, Value: nil}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.write(0, "a")
	r.has("a")
	r.ends(stop)
	if len(r.lost) > 0 {
		t.Errorf("lost %q", r.lost)
	}
}
