package kafka

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const otherTopic = "k8s.other"

// refuseCodecs makes brokers answer as ones that know no other codecs than these, of those in record.Codecs: by the number
// in the batch. It returns how many requests were refused.
func refuseCodecs(c *kfake.Cluster, code int16, known ...int16) *atomic.Int32 {
	const attributes = 21
	var refused atomic.Int32
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		p := r.(*kmsg.ProduceRequest)
		response := p.ResponseKind().(*kmsg.ProduceResponse)
		bad := false
		for _, t := range p.Topics {
			answer := kmsg.NewProduceResponseTopic()
			answer.Topic, answer.TopicID = t.Topic, t.TopicID
			for _, one := range t.Partitions {
				codec := int16(binary.BigEndian.Uint16(one.Records[attributes:]) & 7)
				partition := kmsg.NewProduceResponseTopicPartition()
				partition.Partition, partition.ErrorCode = one.Partition, code
				answer.Partitions = append(answer.Partitions, partition)
				bad = bad || !slices.Contains(known, codec)
			}
			response.Topics = append(response.Topics, answer)
		}
		if bad {
			refused.Add(1)
		}
		return response, nil, bad
	})
	return &refused
}

func TestACodecThatBrokersRefuseIsReplacedByOneThatTheyAccept(t *testing.T) {
	t.Parallel()
	for name, broker := range map[string]struct {
		code    int16
		known   []int16
		accepts string
		batches func(*Config)
	}{
		"as Azure Event Hubs, gzip alone":                   {kerr.UnsupportedForMessageFormat.Code, []int16{0, 1}, "gzip", func(*Config) {}},
		"without zstd":                                      {kerr.UnsupportedCompressionType.Code, []int16{0, 1, 2, 3}, "lz4", func(*Config) {}},
		"without any compression, and without producer IDs": {kerr.UnsupportedCompressionType.Code, []int16{0}, "none", func(c *Config) { c.Idempotence = new(bool) }},
	} {
		t.Run(name, func(t *testing.T) {
			c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA, otherTopic))
			refused := refuseCodecs(c, broker.code, broker.known...)
			cfg := Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff}
			broker.batches(&cfg)
			s, log := openSinkWithLog(t, cfg)
			lane := laneOf(t, s, pod("a", 1))
			mustPublish(t, s, lane, pods("a", 1, 20))
			before := refused.Load()
			mustPublish(t, s, lane, pods("a", 20, 40))
			if now := refused.Load(); now != before {
				t.Errorf("a codec that is known to be refused was sent again %d times", now-before)
			}
			mustPublish(t, s, laneName(otherTopic, 0, 1), pods("a", 1, 5))
			wantVersions(t, readTopics(t, brokers, topicA), 1, 40)
			wantVersions(t, readTopics(t, brokers, otherTopic), 1, 5)
			if n := strings.Count(log.String(), "level=WARN"); n != 1 {
				t.Errorf("%d warnings, expected one:\n%s", n, log)
			}
			want := condition.Problem{
				Code: condition.SinkCompressionRefused, Cause: `topic "` + topicA + `" accepts ` + broker.accepts + ", and refuses zstd",
				Remedy: "set kafka.compression: " + broker.accepts,
			}
			if !slices.ContainsFunc(s.Conditions(), func(s condition.Status) bool {
				return s.Code == want.Code && s.Cause == want.Cause && s.Remedy == want.Remedy
			}) {
				t.Errorf("conditions %+v, expected %+v", s.Conditions(), want)
			}
		})
	}
}

func TestAWindowThatIsInFlightWhenACodecIsRefusedIsWrittenOnceAndInOrder(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSmallBatches(t)
	mustPublish(t, s, lane, pods("a", 2, 40)) // several batches may be in flight now
	refuseCodecs(c, kerr.UnsupportedCompressionType.Code, 0, 1)
	publishUntilAccepted(t, s, lane, pods("a", 40, 90))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 90)
}

func TestACodecThatWasConfiguredIsKeptAndNamedWhenItIsRefused(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.SeedTopics(1, topicA))
	refuseCodecs(c, kerr.UnsupportedForMessageFormat.Code, 0, 1)
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, Compression: "lz4"})
	n, err := publishOnward(t.Context(), s, laneOf(t, s, pod("a", 1)), pods("a", 1, 3))
	p := condition.ProblemOf(err, condition.SinkFailing)
	if n != 0 || p.Code != condition.SinkMisconfigured || !strings.Contains(p.Cause, "lz4") || !strings.Contains(p.Remedy, "kafka.compression") {
		t.Errorf("accepted %d, problem %+v", n, p)
	}
	var stops *sinks.UnavailableError
	if errors.As(err, &stops) {
		t.Error("one topic that refuses a codec stops the sink")
	}
}

func TestATopicThatRefusesEveryFormIsNotSaidToRefuseACodec(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.SeedTopics(1, topicA))
	refuseCodecs(c, kerr.UnsupportedForMessageFormat.Code)
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	_, err := publishOnward(t.Context(), s, laneOf(t, s, pod("a", 1)), pods("a", 1, 3))
	if p := condition.ProblemOf(err, condition.SinkFailing); p.Code != condition.SinkMisconfigured || !strings.Contains(p.Cause, "compressed or not") {
		t.Errorf("problem %+v", p)
	}
	for _, one := range s.Conditions() {
		if one.Code == condition.SinkCompressionRefused {
			t.Errorf("condition %+v", one)
		}
	}
}
