package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// ensureStream creates the stream of the state if it is missing, and checks that an existing one keeps every message.
func (s *Store) ensureStream(ctx context.Context, c stream.Client) error {
	found, err := c.Info(ctx)
	if err != nil {
		return err
	}
	if found == nil {
		return s.createStream(ctx, c)
	}
	why := lossReason(found.Config)
	switch config := found.Config; {
	case !slices.ContainsFunc(config.Subjects, func(subject string) bool { return stream.Covers(subject, s.Name+".>") }):
		why = fmt.Sprintf("does not take the subjects %q; name another in state.name, or add them", s.Name+".>")
	case !config.AllowRollup:
		why = fmt.Sprintf("does not allow roll-ups, which remove older segments: nats stream edit %s --allow-rollup", s.Name)
	case config.NoAck, config.Sealed:
		why = "does not acknowledge, or is sealed"
	}
	if why == "" {
		return nil
	}
	return &sinks.UnavailableError{Code: condition.SinkMisconfigured, Reason: fmt.Sprintf("stream %q cannot keep the state: it %s", s.Name, why)}
}

// lossReason returns how a stream with these settings drops what the state needs; "" if it does not.
func lossReason(config jetstream.StreamConfig) string {
	if config.Retention == jetstream.LimitsPolicy && config.MaxAge <= 0 && config.MaxMsgsPerSubject <= 0 &&
		(config.Discard == jetstream.DiscardNew || config.MaxBytes <= 0 && config.MaxMsgs <= 0) {
		return ""
	}
	return "drops messages by age, number, size or interest, and a state must be complete: use retention limits without " +
		"max_age and max_msgs_per_subject, and discard new with a limit of size"
}

// lookAgain reads the settings of a stream in use, every minute: they may be edited. Without an answer, what was known
// counts.
func (s *Store) lookAgain(ctx context.Context, c stream.Client) {
	if time.Since(s.lookedAt) < lookInterval {
		return
	}
	s.lookedAt = time.Now()
	found, err := c.Info(ctx)
	if err != nil || found == nil {
		return
	}
	p := condition.Problem{}
	if why := lossReason(found.Config); why != "" {
		p = condition.Problem{Code: condition.StateMayLose, Cause: fmt.Sprintf("stream %q %s", s.Name, why)}
	}
	s.mayLose.Update(p)
}

// createStream creates the stream with as many replicas as the stream of the changes, or one if the cluster is too small.
func (s *Store) createStream(ctx context.Context, c stream.Client) error {
	config := jetstream.StreamConfig{
		Name: s.Name, Description: "The state of kubecdc, by which another exporter can take over", Subjects: []string{s.Name + ".>"},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage, Replicas: s.replicaCount(ctx, c),
		MaxBytes: -1, MaxMsgs: -1, MaxConsumers: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, AllowRollup: true, AllowDirect: true,
	}
	made, err := s.requestStream(ctx, c, config)
	if err == nil && made.Error != nil && config.Replicas > 1 && (made.Error.ErrCode == stream.CodeNoReplicas || made.Error.ErrCode == stream.CodeNoPeers) {
		s.Log.Warn("the cluster has too few servers for the replicas; the state has one replica", "stream", s.Name, "wanted", config.Replicas,
			"reason", made.Error.Description)
		config.Replicas = 1
		made, err = s.requestStream(ctx, c, config)
	}
	switch {
	case err != nil:
		return err
	case made.Error != nil:
		return &sinks.UnavailableError{Code: condition.SinkMisconfigured, Reason: fmt.Sprintf("stream %q, for the state, cannot be created", s.Name), Err: made.Error}
	}
	s.Log.Info("NATS stream created for the state", "stream", s.Name, "replicas", config.Replicas)
	return nil
}

// requestStream sends the request to create the stream, and names a missing right.
func (s *Store) requestStream(ctx context.Context, c stream.Client, config jetstream.StreamConfig) (*stream.Info, error) {
	made, err := c.Create(ctx, config)
	if errors.As(err, new(*connection.DeniedError)) {
		err = &sinks.UnavailableError{
			Code: condition.SinkUnauthorized, Err: err,
			Reason: fmt.Sprintf("stream %q, for the state, does not exist, and this user may not create it", s.Name),
			Remedy: fmt.Sprintf("create it for the subjects %q, with roll-ups and direct access allowed, or allow publishing to "+
				"$JS.API.STREAM.CREATE.%s", s.Name+".>", s.Name),
		}
	}
	return made, err
}

// replicaCount returns the number of replicas for a new stream.
func (s *Store) replicaCount(ctx context.Context, c stream.Client) int {
	if s.ReplicasOf == "" {
		return s.Replicas
	}
	c.Name = s.ReplicasOf
	found, err := c.Info(ctx)
	if err != nil || found == nil {
		return s.Replicas
	}
	return max(s.Replicas, found.Config.Replicas)
}
