package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// prepare sees to it that the stream of the state is there, and keeps what it is given.
func (s *stateStore) prepare(ctx context.Context, c streamClient) error {
	found, err := c.info(ctx)
	if err != nil {
		return err
	}
	if found == nil {
		return s.create(ctx, c)
	}
	why := ""
	switch config := found.Config; {
	case !slices.ContainsFunc(config.Subjects, func(subject string) bool { return covers(subject, s.name+".>") }):
		why = fmt.Sprintf("does not take the subjects %q; name another in state.name, or add them", s.name+".>")
	case !config.AllowRollup:
		why = fmt.Sprintf("does not allow roll-ups, by which older segments are removed: nats stream edit %s --allow-rollup", s.name)
	case config.NoAck, config.Sealed:
		why = "does not acknowledge, or is sealed"
	case config.Retention != jetstream.LimitsPolicy, config.MaxAge > 0, config.MaxMsgsPerSubject > 0,
		config.Discard == jetstream.DiscardOld && (config.MaxBytes > 0 || config.MaxMsgs > 0):
		why = "drops messages by itself, by age, number, size or interest, and a state must be kept whole: use retention limits without " +
			"max_age and max_msgs_per_subject, and discard new where there is a limit of size"
	}
	if why == "" {
		return nil
	}
	return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q cannot keep the state: it %s", s.name, why)}
}

// create makes the stream, with as many replicas as that of the changes, or as the cluster gives.
func (s *stateStore) create(ctx context.Context, c streamClient) error {
	config := jetstream.StreamConfig{
		Name: s.name, Description: "The state of kubecdc, by which another exporter can take over", Subjects: []string{s.name + ".>"},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage, Replicas: s.replicas(ctx, c),
		MaxBytes: -1, MaxMsgs: -1, MaxConsumers: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, AllowRollup: true, AllowDirect: true,
	}
	made, err := s.createAs(ctx, c, config)
	if err == nil && made.Error != nil && config.Replicas > 1 && (made.Error.ErrCode == codeNoReplicas || made.Error.ErrCode == codeNoPeers) {
		s.sink.log.Warn("the cluster has not enough servers for as many replicas; the state is kept once", "stream", s.name, "wanted", config.Replicas,
			"reason", made.Error.Description)
		config.Replicas = 1
		made, err = s.createAs(ctx, c, config)
	}
	switch {
	case err != nil:
		return err
	case made.Error != nil:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q, for the state, cannot be created", s.name), Err: made.Error}
	}
	s.sink.log.Info("NATS stream created for the state", "stream", s.name, "replicas", config.Replicas)
	return nil
}

// createAs is create with these settings.
func (s *stateStore) createAs(ctx context.Context, c streamClient, config jetstream.StreamConfig) (*streamAnswer, error) {
	made, err := c.create(ctx, config)
	if errors.As(err, new(*connection.DeniedError)) {
		err = &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q, for the state, does not exist, and this user may not create it: create it for the subjects %q, "+
			"with roll-ups and direct access allowed, or allow publishing to $JS.API.STREAM.CREATE.%s", s.name, s.name+".>", s.name), Err: err}
	}
	return made, err
}

// replicas is how many the stream of the changes has.
func (s *stateStore) replicas(ctx context.Context, c streamClient) int {
	wanted := s.sink.cfg.Create.Replicas
	if s.sink.cfg.Mode == modeCore {
		return wanted
	}
	c.stream = s.sink.cfg.Stream
	if found, err := c.info(ctx); err == nil && found != nil {
		wanted = max(wanted, found.Config.Replicas)
	}
	return wanted
}
