package topic_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// recreateTopic deletes the topic and creates it with this number of partitions.
func (r *topicReader) recreateTopic(partitions int32) {
	r.t.Helper()
	of := kmsg.NewDeleteTopicsRequestTopic()
	of.Topic = kmsg.StringPtr(name)
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.Topics, request.TopicNames, request.TimeoutMillis = []kmsg.DeleteTopicsRequestTopic{of}, []string{name}, 10_000
	if _, err := request.RequestWith(r.t.Context(), r.client); err != nil {
		r.t.Fatal(err)
	}
	r.createTopic(partitions)
	r.client.PurgeTopicsFromClient(name) // which rejects another topic ID otherwise
}

// createTopic creates the topic, after the deletion of the old one has completed.
func (r *topicReader) createTopic(partitions int32) {
	r.t.Helper()
	of := kmsg.NewCreateTopicsRequestTopic()
	of.Topic, of.NumPartitions, of.ReplicationFactor = name, partitions, 1
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = []kmsg.CreateTopicsRequestTopic{of}
	r.awaitCondition("the topic is created", func() bool {
		answer, err := request.RequestWith(r.t.Context(), r.client)
		return err == nil && answer.Topics[0].ErrorCode == 0
	})
}

// addPartitions adds partitions.
func (r *topicReader) addPartitions(partitions int32) {
	r.t.Helper()
	of := kmsg.NewCreatePartitionsRequestTopic()
	of.Topic, of.Count = name, partitions
	request := kmsg.NewPtrCreatePartitionsRequest()
	request.Topics, request.TimeoutMillis = []kmsg.CreatePartitionsRequestTopic{of}, 10_000
	if _, err := request.RequestWith(r.t.Context(), r.client); err != nil {
		r.t.Fatal(err)
	}
	r.client.PurgeTopicsFromClient(name) // which caches the old number otherwise
}

// stopReader stops a reader.
func (r *topicReader) stopReader(stop func() error) {
	r.t.Helper()
	if err := stop(); err == nil || !strings.Contains(err.Error(), "canceled") {
		r.t.Fatal(err)
	}
}

func (r *topicReader) awaitLoss(words string) {
	r.t.Helper()
	r.awaitCondition("a loss: "+words, func() bool {
		for _, reason := range r.lost {
			if strings.Contains(reason, words) {
				return true
			}
		}
		return false
	})
}

// TestRecreatedTopicIsReadFromStart writes more records to the new topic than were read of the old one, so that offsets do
// not distinguish them.
func TestRecreatedTopicIsReadFromStart(t *testing.T) {
	for what, away := range map[string]bool{"while it is read": false, "without a reader": true} {
		t.Run(what, func(t *testing.T) {
			r := newTopicReader(t)
			r.verifyRecreatedTopic(away)
		})
	}
}

func (r *topicReader) verifyRecreatedTopic(away bool) {
	r.t.Helper()
	stop := r.startReader()
	r.awaitPositions()
	r.writeEvents(0, "a", "b")
	r.awaitEvents("a", "b")
	if away {
		r.stopReader(stop)
	}
	r.recreateTopic(2)
	r.writeEvents(0, "c", "d", "e", "f")
	if away {
		stop = r.startReader()
	}
	r.awaitEvents("a", "b", "c", "d", "e", "f")
	r.awaitLoss("recreated")
	r.stopReader(stop)
	r.writeEvents(0, "g")
	stop = r.startReader()
	r.awaitEvents("a", "b", "c", "d", "e", "f", "g")
	r.stopReader(stop)
	if len(r.lost) != 1 {
		r.t.Errorf("lost %q", r.lost)
	}
}

// TestRecreatedUnreadTopicIsDetected identifies the topic by a skipped record.
func TestRecreatedUnreadTopicIsDetected(t *testing.T) {
	r := newTopicReader(t)
	r.writeEvents(0, "old", "old", "old")
	stop := r.startReader()
	r.awaitCondition("it is known", func() bool { return strings.HasPrefix(r.positions["kafka:audit/0"], "3 2 ") })
	r.stopReader(stop)
	r.recreateTopic(2)
	r.writeEvents(0, "c", "d", "e", "f")
	stop = r.startReader()
	r.awaitEvents("c", "d", "e", "f")
	r.awaitLoss("recreated")
	r.stopReader(stop)
}

func TestShorterTopicIsReadFromStart(t *testing.T) {
	r := newTopicReader(t)
	stop := r.startReader()
	r.awaitPositions()
	r.writeEvents(0, "a", "b", "c")
	r.awaitEvents("a", "b", "c")
	r.stopReader(stop)
	r.recreateTopic(2)
	r.writeEvents(0, "d")
	stop = r.startReader()
	r.awaitEvents("a", "b", "c", "d")
	r.awaitLoss("recreated, or has lost records")
	r.stopReader(stop)
}

// TestAddedPartitionsAreReadFromStart adds one partition while the topic is read, and one without a reader.
func TestAddedPartitionsAreReadFromStart(t *testing.T) {
	r := newTopicReader(t)
	stop := r.startReader()
	r.awaitPositions()
	r.addPartitions(3)
	r.writeEvents(2, "a")
	r.awaitEvents("a")
	r.stopReader(stop)
	r.addPartitions(4)
	r.writeEvents(3, "b")
	stop = r.startReader()
	r.awaitEvents("a", "b")
	r.stopReader(stop)
	if len(r.lost) > 0 {
		t.Errorf("lost %q", r.lost)
	}
}

// TestRemovedPartitionsAreReportedAsLoss recreates the topic with fewer partitions, with and without a reader. The others
// are still read.
func TestRemovedPartitionsAreReportedAsLoss(t *testing.T) {
	for what, away := range map[string]bool{"while it is read": false, "without a reader": true} {
		t.Run(what, func(t *testing.T) {
			r := newTopicReader(t)
			stop := r.startReader()
			r.awaitPositions()
			r.writeEvents(1, "a")
			r.awaitEvents("a")
			if away {
				r.stopReader(stop)
			}
			r.recreateTopic(1)
			r.writeEvents(0, "b")
			if away {
				stop = r.startReader()
			}
			r.awaitEvents("a", "b")
			r.awaitLoss("partition 1 of the audit topic audit is gone")
			r.awaitCondition("the rest can be read", func() bool { status, _ := r.reader.Status(); return status.OK() })
			r.stopReader(stop)
		})
	}
}

func TestRecordWithoutValueIsNoLoss(t *testing.T) {
	r := newTopicReader(t)
	stop := r.startReader()
	r.awaitPositions()
	if err := r.client.ProduceSync(t.Context(), &kgo.Record{Topic: name, Partition: 0, Value: nil}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.writeEvents(0, "a")
	r.awaitEvents("a")
	r.stopReader(stop)
	if len(r.lost) > 0 {
		t.Errorf("lost %q", r.lost)
	}
}
