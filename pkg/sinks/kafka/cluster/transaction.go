package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/addpartitionstotxn"
	"github.com/segmentio/kafka-go/protocol/endtxn"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/initproducerid"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	// RenewInterval is how often a new epoch keeps a transactional ID from expiring, which it does after seven days by default
	// (transactional.id.expiration.ms).
	RenewInterval = 24 * time.Hour
	// coordinatorPause is between two questions to a coordinator that is busy or moves.
	coordinatorPause = 20 * time.Millisecond
	// coordinatorTimeouts is how many request timeouts a coordinator that is away is waited for before the caller decides.
	coordinatorTimeouts = 3
	// transactionTimeout is after what time brokers abort a transaction. Ours are ended at once.
	transactionTimeout = time.Minute
	// maxUnknownTries is how often a partition must be unknown to count as gone: a broker may not have heard of it yet.
	maxUnknownTries = 3
)

// Transactional is a transactional ID, of which only the fence is used (KIP-98): who has asked for its producer ID last is
// the only one whose batches are accepted, in all partitions that have seen a marker of the newest epoch. No record is ever
// transactional. One goroutine at a time uses it.
type Transactional struct {
	cluster     *Cluster
	ID          string
	coordinator int32 // broker; noID: not known
}

// ProducerEpoch are a producer ID and an epoch, as InitProducerId hands them out. Epochs are never made up: another process may
// have been given the next one.
type ProducerEpoch struct {
	Producer int64
	Epoch    int16
}

// NoProducer is who has no numbers yet.
var NoProducer = ProducerEpoch{NoID, NoID}

// Partition is one of a topic.
type Partition struct {
	Topic string
	Index int32
}

func (p Partition) String() string { return fmt.Sprintf("topic %q partition %d", p.Topic, p.Index) }

// FencePartitions claims the transactional ID, or goes on with what own has claimed, and turns older epochs away in these partitions.
// It returns the epoch to write under, after an error the newest that was given, and the partitions that do not exist. The
// epoch of the marker is not the one that is returned: nothing that was sent before the fence is numbered as what comes
// after it.
func (t *Transactional) FencePartitions(ctx context.Context, own ProducerEpoch, all []Partition) (_ ProducerEpoch, gone []Partition, err error) {
	if own, err = t.InitProducerID(ctx, own); err != nil {
		return own, nil, err
	}
	there, gone, err := t.addPartitions(ctx, own, all)
	if err != nil || len(there) == 0 {
		return own, gone, err
	}
	if err := t.abortTransaction(ctx, own); err != nil {
		return own, nil, err
	}
	own, err = t.InitProducerID(ctx, own) // is answered when all markers are written
	return own, gone, err
}

// Transactional returns a transactional ID that nobody has asked about yet.
func (c *Cluster) Transactional(id string) *Transactional {
	return &Transactional{cluster: c, ID: id, coordinator: NoID}
}

// InitProducerID asks for an epoch: the next one after own, or, for nobody, after whatever there is. By itself it turns nobody away: a
// partition accepts older epochs until it has seen this one.
func (t *Transactional) InitProducerID(ctx context.Context, own ProducerEpoch) (ProducerEpoch, error) {
	got := own
	err := t.requestCoordinator(ctx, func(ctx context.Context) error {
		answer, err := t.cluster.request(ctx, t.coordinator, &initproducerid.Request{
			TransactionalID: t.ID, TransactionTimeoutMs: int32(transactionTimeout.Milliseconds()),
			ProducerID: own.Producer, ProducerEpoch: own.Epoch,
		})
		if err != nil {
			return err
		}
		r := answer.(*initproducerid.Response)
		if err := protocol.CodeError(r.ErrorCode, ""); err != nil {
			return err
		}
		got = ProducerEpoch{r.ProducerID, r.ProducerEpoch}
		return nil
	})
	return got, err
}

// CheckProducerID returns an error where the ID has another producer ID than before: who takes over, be it this process, gets to know,
// as nothing turns away what was sent under the old one.
func (t *Transactional) CheckProducerID(before, now ProducerEpoch) error {
	if now.Producer == before.Producer {
		return nil
	}
	return &sinks.DeposedError{Reason: fmt.Sprintf("the transactional ID %q has another producer ID now: it had expired, or its epochs are used up", t.ID)}
}

// addPartitions makes partitions part of the transaction, and returns those that are and those that do not exist.
func (t *Transactional) addPartitions(ctx context.Context, own ProducerEpoch, all []Partition) (there, gone []Partition, err error) {
	for chunk := range slices.Chunk(all, maxPartitionsPerRequest) {
		missing := map[Partition]bool{}
		for try := 1; len(chunk) > 0; try++ {
			unknown, err := t.addPartitionsOnce(ctx, own, chunk)
			if err != nil {
				return nil, nil, err
			}
			if len(unknown) == 0 {
				there = append(there, chunk...)
				break
			}
			if try < maxUnknownTries {
				if err := ratelimit.Sleep(ctx, 10*coordinatorPause); err != nil {
					return nil, nil, err
				}
				continue
			}
			for _, p := range unknown {
				missing[p] = true
			}
			chunk = slices.DeleteFunc(slices.Clone(chunk), func(p Partition) bool { return missing[p] })
		}
		gone = slices.AppendSeq(gone, maps.Keys(missing))
	}
	return there, gone, nil
}

// addPartitionsOnce adds partitions to the transaction, all or none. It returns those because of which it was none, as they do not
// exist.
func (t *Transactional) addPartitionsOnce(ctx context.Context, own ProducerEpoch, all []Partition) (unknown []Partition, err error) {
	request := &addpartitionstotxn.Request{TransactionalID: t.ID, ProducerID: own.Producer, ProducerEpoch: own.Epoch}
	at := map[string]int{}
	for _, p := range all {
		i, known := at[p.Topic]
		if !known {
			i, at[p.Topic] = len(request.Topics), len(request.Topics)
			request.Topics = append(request.Topics, addpartitionstotxn.RequestTopic{Name: p.Topic})
		}
		request.Topics[i].Partitions = append(request.Topics[i].Partitions, p.Index)
	}
	err = t.requestCoordinator(ctx, func(ctx context.Context) error {
		answer, err := t.cluster.request(ctx, t.coordinator, request)
		if err != nil {
			return err
		}
		unknown, err = readRefusals(answer.(*addpartitionstotxn.Response))
		return err
	})
	return unknown, err
}

// operationNotAttempted is the refusal of a partition because another one of the request was refused.
const operationNotAttempted = kafka.Error(55)

// readRefusals reads which partitions were refused because they do not exist, and the first other refusal.
func readRefusals(r *addpartitionstotxn.Response) (unknown []Partition, err error) {
	for _, topic := range r.Results {
		for _, p := range topic.Results {
			switch code := kafka.Error(p.ErrorCode); {
			case code == kafka.UnknownTopicOrPartition:
				unknown = append(unknown, Partition{topic.Name, p.PartitionIndex})
			case code == kafka.TopicAuthorizationFailed:
				return nil, fmt.Errorf("no right to turn an older writer away from topic %q: grant WRITE on it: %w", topic.Name, code)
			case code != 0 && code != operationNotAttempted:
				return nil, code
			}
		}
	}
	return unknown, nil
}

// abortTransaction ends the transaction.
func (t *Transactional) abortTransaction(ctx context.Context, own ProducerEpoch) error {
	return t.requestCoordinator(ctx, func(ctx context.Context) error {
		answer, err := t.cluster.request(ctx, t.coordinator, &endtxn.Request{TransactionalID: t.ID, ProducerID: own.Producer, ProducerEpoch: own.Epoch})
		if err != nil {
			return err
		}
		return protocol.CodeError(answer.(*endtxn.Response).ErrorCode, "")
	})
}

// requestCoordinator repeats a request to the coordinator while that moves, starts or still ends the transaction before. All our requests
// may be repeated when their answers are lost.
func (t *Transactional) requestCoordinator(ctx context.Context, request func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, coordinatorTimeouts*t.cluster.timeout)
	defer cancel()
	var last error
	for {
		err := t.findCoordinator(bounded)
		if err == nil {
			err = request(bounded)
		}
		switch {
		case err == nil:
			return nil
		case bounded.Err() == nil && !t.mayRetry(err):
			return t.SinkError(ctx, err)
		case bounded.Err() == nil || last == nil: // the end of ctx says less than what was said before
			last = err
		}
		if ratelimit.Sleep(bounded, coordinatorPause) != nil {
			return t.unavailableError(ctx, last)
		}
	}
}

// unavailableError says that there was no useful answer for long.
func (t *Transactional) unavailableError(ctx context.Context, last error) error {
	if ctx.Err() != nil || !protocol.IsBrokerError(last) {
		return t.cluster.SinkError(ctx, "", last)
	}
	return &sinks.UnavailableError{After: UnavailableRetry, Err: last, Reason: fmt.Sprintf(
		"the transactional ID %q has no coordinator that is ready: check the brokers, and the replicas of the topic __transaction_state", t.ID)}
}

// mayRetry says whether a request may succeed later, and forgets a coordinator that is none any more.
func (t *Transactional) mayRetry(err error) bool {
	switch {
	case errors.Is(err, kafka.ConcurrentTransactions), errors.Is(err, kafka.GroupLoadInProgress): // 51, 14
		return true
	case errors.Is(err, kafka.GroupCoordinatorNotAvailable), errors.Is(err, kafka.NotCoordinatorForGroup), // 15, 16
		errors.Is(err, kafka.RequestTimedOut), errors.Is(err, kafka.NotEnoughReplicas), errors.Is(err, kafka.NotEnoughReplicasAfterAppend),
		!protocol.IsBrokerError(err):
		t.coordinator = NoID
		return true
	}
	return false
}

// SinkError turns what the coordinator says into the contract's errors.
func (t *Transactional) SinkError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, kafka.InvalidProducerEpoch), errors.Is(err, kafka.ProducerFenced), errors.Is(err, kafka.InvalidProducerIDMapping): // 47, 90, 49
		return &sinks.DeposedError{Reason: fmt.Sprintf("another process has claimed the transactional ID %q", t.ID), Err: err}
	case errors.Is(err, kafka.TransactionalIDAuthorizationFailed):
		return &sinks.UnavailableError{Err: err, Reason: fmt.Sprintf(
			"no right to use the transactional ID %q: grant WRITE on it, or on TRANSACTIONAL_ID with a prefix of it", t.ID)}
	case errors.Is(err, kafka.UnsupportedVersion):
		return &sinks.UnavailableError{Err: err, Reason: "Kafka has no transactions, which the replicated state needs: use brokers from Kafka 2.8 on"}
	}
	if protocol.ClassifyError(err) == protocol.Unauthorized {
		return t.cluster.SinkError(ctx, "", err)
	}
	return fmt.Errorf("transactional ID %q: %w", t.ID, err)
}

// findCoordinator asks who coordinates the transactional ID, if that is not known.
func (t *Transactional) findCoordinator(ctx context.Context) error {
	const transactions = 1 // what is coordinated
	if t.coordinator != NoID {
		return nil
	}
	answer, err := t.cluster.request(ctx, anyBroker, &findcoordinator.Request{Key: t.ID, KeyType: transactions})
	if err != nil {
		return err
	}
	r := answer.(*findcoordinator.Response)
	if err := protocol.CodeError(r.ErrorCode, r.ErrorMessage); err != nil {
		return err
	}
	t.coordinator = r.NodeID
	return nil
}

// TransactionalID names what a group fences a sink, or its state, by. Every process of the group has the same.
func TransactionalID(group string, parts ...string) string {
	return strings.Join(append([]string{group}, parts...), "-")
}
