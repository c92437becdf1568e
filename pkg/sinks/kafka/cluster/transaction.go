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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	// RenewInterval is how often a new epoch is requested to keep a transactional ID from expiring, by default after seven days
	// (transactional.id.expiration.ms).
	RenewInterval = 24 * time.Hour
	// coordinatorPause is the time between two requests to a coordinator that is busy or moves.
	coordinatorPause = 20 * time.Millisecond
	// coordinatorTimeouts is how many request timeouts to wait for a coordinator before the error goes to the caller.
	coordinatorTimeouts = 3
	// transactionTimeout is when brokers abort an open transaction. Ours are aborted at once.
	transactionTimeout = time.Minute
	// maxUnknownTries is how often brokers must report a partition as unknown before it counts as deleted: a broker may not
	// have received the metadata of a new topic yet.
	maxUnknownTries = 3
)

var errCoordinatorMoved = fmt.Errorf("the coordinator did not answer before the brokers named another one: %w", context.DeadlineExceeded)

// Transactional is a transactional ID that is used as a fence only (KIP-98): a partition that has the marker of an epoch
// rejects the batches of all older epochs. No record is ever transactional. Not safe for concurrent use.
type Transactional struct {
	cluster     *Cluster
	ID          string
	coordinator int32 // broker ID; NoID: unknown
}

// ProducerEpoch is a producer ID and an epoch. Those of a transactional ID come from InitProducerId only; an epoch is never
// incremented here, because another process may have been given the next one.
type ProducerEpoch struct {
	Producer int64
	Epoch    int16
}

// NoProducer is the epoch of a process that has none yet.
var NoProducer = ProducerEpoch{NoID, NoID}

// Partition identifies a partition of a topic.
type Partition struct {
	Topic string
	Index int32
}

func (p Partition) String() string { return fmt.Sprintf("topic %q partition %d", p.Topic, p.Index) }

// FencePartitions makes these partitions reject all older epochs, by aborting a transaction without records over them. With
// NoProducer it claims the transactional ID; otherwise it continues under own. It returns the epoch to write under, or after
// an error the newest epoch received, and the partitions that do not exist. The returned epoch is newer than that of the
// markers, so no batch sent before the fence has the numbers of one sent after it.
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
	own, err = t.InitProducerID(ctx, own) // the coordinator answers after all markers are written
	return own, gone, err
}

// NewTransactional returns a transactional ID. It sends nothing.
func NewTransactional(c *Cluster, id string) *Transactional {
	return &Transactional{cluster: c, ID: id, coordinator: NoID}
}

// InitProducerID requests the epoch after own or, with NoProducer, after whatever the coordinator has. It does not fence: a
// partition accepts older epochs until it has a marker of this one.
func (t *Transactional) InitProducerID(ctx context.Context, own ProducerEpoch) (ProducerEpoch, error) {
	got := own
	err := t.requestCoordinator(ctx, func(ctx context.Context) error {
		now, err := t.cluster.initProducerID(ctx, t.coordinator, &t.ID, own)
		if err == nil {
			got = now
		}
		return err
	})
	return got, err
}

// initProducerID requests an epoch of a broker, see [Transactional.InitProducerID]; without a transactional ID, another
// producer ID.
func (c *Cluster) initProducerID(ctx context.Context, broker int32, transactionalID *string, own ProducerEpoch) (ProducerEpoch, error) {
	request := kmsg.InitProducerIDRequest{
		TransactionalID: transactionalID, TransactionTimeoutMillis: int32(transactionTimeout.Milliseconds()),
		ProducerID: own.Producer, ProducerEpoch: own.Epoch,
	}
	answer, err := request.RequestWith(ctx, c.to(broker))
	if err != nil {
		return ProducerEpoch{}, err
	}
	return ProducerEpoch{answer.ProducerID, answer.ProducerEpoch}, protocol.CodeError(answer.ErrorCode, nil)
}

// CheckProducerID returns a DeposedError if the producer ID has changed: batches under the old one are not fenced, so the
// claim has to be made again.
func (t *Transactional) CheckProducerID(before, now ProducerEpoch) error {
	if now.Producer == before.Producer {
		return nil
	}
	return &sinks.DeposedError{Reason: fmt.Sprintf("the producer ID of the transactional ID %q has changed: the ID had expired, or its epochs are exhausted", t.ID)}
}

// addPartitions adds partitions to the transaction. It returns those that were added and those that do not exist.
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

// addPartitionsOnce adds all partitions or, if some are unknown to the brokers, none, and returns the unknown ones.
func (t *Transactional) addPartitionsOnce(ctx context.Context, own ProducerEpoch, all []Partition) (unknown []Partition, err error) {
	request := kmsg.AddPartitionsToTxnRequest{TransactionalID: t.ID, ProducerID: own.Producer, ProducerEpoch: own.Epoch}
	byTopic := map[string][]int32{}
	for _, p := range all {
		byTopic[p.Topic] = append(byTopic[p.Topic], p.Index)
	}
	for topic, partitions := range byTopic {
		request.Topics = append(request.Topics, kmsg.AddPartitionsToTxnRequestTopic{Topic: topic, Partitions: partitions})
	}
	err = t.requestCoordinator(ctx, func(ctx context.Context) error {
		answer, err := request.RequestWith(ctx, t.cluster.to(t.coordinator))
		if err != nil {
			return err
		}
		unknown, err = readRefusals(answer)
		return err
	})
	return unknown, err
}

// operationNotAttempted is the error of a partition when another partition of the request was refused.
const operationNotAttempted = kafka.Error(55)

// readRefusals returns the partitions that do not exist, and the first other error.
func readRefusals(r *kmsg.AddPartitionsToTxnResponse) (unknown []Partition, err error) {
	for _, topic := range r.Topics {
		for _, p := range topic.Partitions {
			switch code := kafka.Error(p.ErrorCode); {
			case code == kafka.UnknownTopicOrPartition:
				unknown = append(unknown, Partition{topic.Topic, p.Partition})
			case code == kafka.TopicAuthorizationFailed:
				return nil, fmt.Errorf("no right to fence an older writer of topic %q: grant WRITE on it: %w", topic.Topic, code)
			case code != 0 && code != operationNotAttempted:
				return nil, code
			}
		}
	}
	return unknown, nil
}

func (t *Transactional) abortTransaction(ctx context.Context, own ProducerEpoch) error {
	return t.requestCoordinator(ctx, func(ctx context.Context) error {
		request := kmsg.EndTxnRequest{TransactionalID: t.ID, ProducerID: own.Producer, ProducerEpoch: own.Epoch}
		answer, err := request.RequestWith(ctx, t.cluster.to(t.coordinator))
		if err != nil {
			return err
		}
		return protocol.CodeError(answer.ErrorCode, nil)
	})
}

// requestCoordinator repeats a request while the coordinator moves, starts, or still completes the previous transaction. All
// requests of this type may be repeated after a lost answer.
func (t *Transactional) requestCoordinator(ctx context.Context, request func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, coordinatorTimeouts*t.cluster.timeout)
	defer cancel()
	var last error
	asked := int32(NoID)
	for {
		err := t.findCoordinator(bounded)
		if t.coordinator != NoID {
			asked = t.coordinator
		}
		if err == nil {
			err = t.requestUntilMoved(bounded, request)
		}
		switch {
		case err == nil:
			return nil
		case bounded.Err() == nil && !t.mayRetry(err):
			return t.SinkError(ctx, err)
		case bounded.Err() == nil || last == nil: // the end of ctx explains less than the error before
			last = err
		}
		if ratelimit.Sleep(bounded, coordinatorPause) != nil {
			return t.unavailableError(ctx, asked, last)
		}
	}
}

// requestUntilMoved sends a request to the coordinator and waits for the answer for as long as the brokers name no other
// one: a frozen coordinator never says that it has been replaced.
func (t *Transactional) requestUntilMoved(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ratelimit.Sleep(ctx, hedgeAfter) == nil {
			if now, err := t.lookUpCoordinator(ctx); err == nil && now != t.coordinator {
				cancel(errCoordinatorMoved)
			}
		}
	}()
	err := request(ctx)
	if moved := context.Cause(ctx); err != nil && errors.Is(moved, errCoordinatorMoved) {
		err = moved
	}
	cancel(nil)
	<-watched
	return err
}

// unavailableError is the error after no coordinator was ready for coordinatorTimeouts, or for the time that ctx leaves.
// asked is the last coordinator; NoID: the brokers have named none.
func (t *Transactional) unavailableError(ctx context.Context, asked int32, last error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled), asked == NoID && !protocol.IsBrokerError(last):
		return t.cluster.SinkError(ctx, "", last)
	case !protocol.IsBrokerError(last):
		p := condition.ProblemOf(t.cluster.pool.brokerError(asked, last), condition.SinkUnreachable)
		p.Cause += fmt.Sprintf("; it coordinates the fence of the transactional ID %q", t.ID)
		return &sinks.UnavailableError{Code: p.Code, Reason: p.Cause, Remedy: p.Remedy, After: UnavailableRetry}
	}
	return &sinks.UnavailableError{
		Code: condition.SinkUnreachable, After: UnavailableRetry, Err: last,
		Reason: fmt.Sprintf("the transactional ID %q has no coordinator that is ready", t.ID),
		Remedy: "check the brokers, and the replicas of the topic __transaction_state (transaction.state.log.replication.factor)",
	}
}

// mayRetry reports whether a request may succeed later, and drops a coordinator that has moved.
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

// SinkError turns an error of the coordinator into an error of the [sinks.Sink] contract.
func (t *Transactional) SinkError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, kafka.InvalidProducerEpoch), errors.Is(err, kafka.ProducerFenced), errors.Is(err, kafka.InvalidProducerIDMapping): // 47, 90, 49
		return &sinks.DeposedError{Reason: fmt.Sprintf("another process has claimed the transactional ID %q", t.ID), Err: err}
	case errors.Is(err, kafka.TransactionalIDAuthorizationFailed):
		return &sinks.UnavailableError{
			Code: condition.SinkUnauthorized, Err: err, Reason: fmt.Sprintf("no right to use the transactional ID %q", t.ID),
			Remedy: "grant WRITE on it, or on TRANSACTIONAL_ID with a prefix of it",
		}
	case errors.Is(err, kafka.UnsupportedVersion):
		return &sinks.UnavailableError{
			Code: condition.SinkMisconfigured, Err: err, Reason: "Kafka has no transactions that fence an older process",
			Remedy: "use brokers from Kafka 2.8 on",
		}
	}
	if protocol.ClassifyError(err) == protocol.Unauthorized {
		return t.cluster.SinkError(ctx, "", err)
	}
	return fmt.Errorf("transactional ID %q: %w", t.ID, err)
}

// HasLog reports whether the brokers have a log of transactions, or may have one. They make it for the first transaction,
// unless they are fewer than its replicas (transaction.state.log.replication.factor).
func (t *Transactional) HasLog(ctx context.Context) bool {
	const log = "__transaction_state"
	found, _, err := t.cluster.DescribeTopics(ctx, []string{log})
	return err != nil || found[log] == nil || !errors.Is(found[log].Err, kafka.UnknownTopicOrPartition)
}

// FindCoordinator looks up the coordinator, which needs the right to use the transactional ID, and does not wait for one.
func (t *Transactional) FindCoordinator(ctx context.Context) error {
	if err := t.findCoordinator(ctx); err != nil {
		return t.SinkError(ctx, err)
	}
	return nil
}

// findCoordinator looks up the coordinator unless it is known.
func (t *Transactional) findCoordinator(ctx context.Context) error {
	if t.coordinator != NoID {
		return nil
	}
	found, err := t.lookUpCoordinator(ctx)
	if err == nil {
		t.coordinator = found
	}
	return err
}

// lookUpCoordinator returns the ID of the broker that the brokers name as the coordinator.
func (t *Transactional) lookUpCoordinator(ctx context.Context) (int32, error) {
	const transactions = 1 // type of coordinator
	request := kmsg.FindCoordinatorRequest{CoordinatorKey: t.ID, CoordinatorType: transactions}
	answer, err := request.RequestWith(ctx, t.cluster.to(anyBroker))
	if err != nil {
		return NoID, err
	}
	return answer.NodeID, protocol.CodeError(answer.ErrorCode, answer.ErrorMessage)
}

// TransactionalID returns the transactional ID by which all processes of a group fence a sink, or the state.
func TransactionalID(group string, parts ...string) string {
	return strings.Join(append([]string{group}, parts...), "-")
}

// UnavailableRetry is the time between two attempts while no broker answers. It does not grow: a connection attempt a second
// is cheap, and the recovery is noticed within a second after any outage.
const UnavailableRetry = time.Second

// SinkError turns the error of any request but produce into an error of the [sinks.Sink] contract. topic may be "".
func (c *Cluster) SinkError(ctx context.Context, topic string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case protocol.ClassifyError(err) == protocol.Unauthorized:
		return c.AuthorizationError(topic, err)
	case protocol.IsBrokerError(err):
		return fmt.Errorf("topic %q: %w", topic, err)
	}
	return c.unreachableError(err)
}

func (c *Cluster) unreachableError(err error) error {
	p := condition.ProblemOf(err, "") // of a broker to which there is no connection
	switch {
	case errors.As(err, new(*auth.CredentialError)):
		p = condition.Problem{Code: condition.SinkUnauthorized, Cause: "the Kafka credentials cannot be read: " + err.Error(), Remedy: "check kafka.sasl and kafka.tls"}
	case p.Code != "":
	default:
		if p = c.pool.peer().Problem(err); p.Code == condition.SinkUnreachable {
			p.Cause = fmt.Sprintf("no broker of %s answers: %s", c.addresses, p.Cause)
		}
	}
	return &sinks.UnavailableError{Code: p.Code, Reason: p.Cause, Remedy: p.Remedy, After: UnavailableRetry}
}

// AuthorizationError turns a refusal into an error with the remedy: an UnavailableError when the credentials or idempotent
// writes are refused, which stops the whole sink; an ordinary error when only this topic is.
func (c *Cluster) AuthorizationError(topic string, err error) error {
	e := &sinks.UnavailableError{Code: condition.SinkUnauthorized, Err: err}
	switch {
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		e.Reason, e.Remedy = "Kafka refuses the credentials", "check kafka.sasl"
	case errors.Is(err, kafka.UnsupportedSASLMechanism), errors.Is(err, kafka.IllegalSASLState):
		e.Reason, e.Remedy = "Kafka does not offer this SASL mechanism", "check kafka.sasl.mechanism, and the port in kafka.brokers"
	case errors.Is(err, kafka.ClusterAuthorizationFailed), errors.Is(err, kafka.TransactionalIDAuthorizationFailed):
		e.Reason, e.Remedy = "Kafka refuses idempotent writes", "grant WRITE on the topics (before Kafka 3.0 also IDEMPOTENT_WRITE on the cluster)"
	default:
		return condition.Problem{
			Code: condition.SinkUnauthorized, Cause: fmt.Sprintf("no right to write to topic %q", topic),
			Remedy: "grant WRITE and DESCRIBE on it (and CREATE for kafka.createTopics)",
		}.Wrap(err)
	}
	return e
}

// QueryEpochEnds sets Lead, Shape and EpochEnd of spans: where the log of the leader, replicated or not, has the end of the
// epoch AskedEpoch, or of the newest one before that (KIP-320). It finds the leaders and reports errors as ReadSpans does.
func (r *Reader) QueryEpochEnds(ctx context.Context, spans []*Span) error {
	return r.askLeaders(ctx, spans, func(ctx context.Context, leader int32, all []*Span) error {
		for some := range slices.Chunk(all, maxPartitionsPerRequest) {
			r.queryEpochEnds(ctx, leader, some)
		}
		return nil // the spans have the errors
	})
}

// queryEpochEnds is QueryEpochEnds for partitions of one leader.
func (r *Reader) queryEpochEnds(ctx context.Context, leader int32, spans []*Span) {
	request := kmsg.NewPtrOffsetForLeaderEpochRequest()
	for topic, all := range spansByTopic(spans) {
		t := kmsg.OffsetForLeaderEpochRequestTopic{Topic: topic}
		for _, s := range all {
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = s.Index, s.Lead.Epoch, s.AskedEpoch
			t.Partitions = append(t.Partitions, p)
		}
		request.Topics = append(request.Topics, t)
	}
	limited, cancel := r.limitRequest(ctx)
	defer cancel()
	answer, err := request.RequestWith(limited, r.cluster.to(leader))
	if err != nil {
		_ = failSpans(spans, err)
		return
	}
	unanswered := spansByPartition(spans)
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			s := unanswered[Partition{t.Topic, p.Partition}]
			if s == nil {
				_ = failSpans(spans, protocol.ErrMalformed)
				return
			}
			delete(unanswered, s.Partition)
			if s.EpochEnd = p.EndOffset; p.ErrorCode != 0 {
				s.Err = fmt.Errorf("asking %s for its history: %w", s.Partition, protocol.CodeError(p.ErrorCode, nil))
			}
		}
	}
	for _, s := range unanswered {
		s.Err = protocol.ErrMalformed
	}
}

// LogEndOffset returns the end of the leader's log, replicated or not.
func (r *Reader) LogEndOffset(ctx context.Context, by Lead, p Partition) (int64, error) {
	one := &Span{Partition: p, Lead: by, AskedEpoch: by.Epoch}
	r.queryEpochEnds(ctx, by.Broker, []*Span{one})
	return one.EpochEnd, one.Err
}

// OriginAt asks the leader of a partition for the origin of the batch that contains an offset. found is false if compaction
// has removed that.
func (r *Reader) OriginAt(ctx context.Context, by Lead, p Partition, offset int64) (o protocol.Origin, found bool, err error) {
	request := newFetchRequest([]*Span{{Partition: p, Lead: by, Next: offset}})
	request.MaxBytes, request.Topics[0].Partitions[0].PartitionMaxBytes = 1, 1 // one batch, however large
	limited, cancel := r.limitRequest(ctx)
	defer cancel()
	answer, err := request.RequestWith(limited, requestor{r.cluster, by.Broker, forReading})
	if err == nil {
		err = protocol.CodeError(answer.ErrorCode, nil)
	}
	if err != nil {
		return o, false, err
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return o, false, protocol.ErrMalformed
	}
	one := answer.Topics[0].Partitions[0]
	if err := protocol.CodeError(one.ErrorCode, nil); err != nil {
		return o, false, fmt.Errorf("reading %s: %w", p, err)
	}
	batches := protocol.Batches(one.RecordBatches)
	if len(batches) == 0 {
		return o, false, protocol.ErrMalformed
	}
	o, found = batches.OriginAt(offset)
	return o, found, nil
}

// NoID stands for an unknown producer ID, epoch or coordinator.
const NoID = -1

// NewProducerID requests a producer ID, with epoch 0, for writing to a topic. An InitProducerId request without a
// transactional ID goes to any broker (KIP-98).
func (c *Cluster) NewProducerID(ctx context.Context, topic string) (id ProducerEpoch, err error) {
	err = retryOnce(ctx, func() error {
		id, err = c.initProducerID(ctx, anyBroker, nil, NoProducer)
		return err
	})
	if errors.Is(err, kafka.UnsupportedVersion) {
		return id, &sinks.UnavailableError{
			Code: condition.SinkMisconfigured, Reason: "Kafka does not issue producer IDs", Err: err,
			Remedy: "set kafka.idempotence to false, or use brokers from Kafka 0.11 on",
		}
	}
	if err != nil && protocol.IsBrokerError(err) && protocol.ClassifyError(err) != protocol.Unauthorized {
		return id, fmt.Errorf("cannot get a producer ID for topic %q: %w", topic, err)
	}
	return id, c.SinkError(ctx, topic, err)
}
