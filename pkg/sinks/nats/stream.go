package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// What is little of a stream that drops its oldest messages.
const (
	smallStreamBytes    = 64 << 20
	smallStreamMessages = 10_000
	shortRetention      = time.Hour
	shortMaxAge         = 5 * time.Minute
)

// minSafeDuplicates is a window that outlasts a reconnect and a back-off before a message is sent again.
const minSafeDuplicates = time.Minute

// ensureVerified sees to it that the stream is there and takes our subjects. One caller looks, the others wait for it.
func (s *Sink) ensureVerified(ctx context.Context, l *connection.Link) error {
	select {
	case s.verifyLock <- struct{}{}:
		defer func() { <-s.verifyLock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.verified.Load() {
		return nil
	}
	err := s.lookUpStream(ctx, s.streamClient(l))
	s.verified.Store(err == nil)
	return err
}

// streamClient asks for the stream of the changes.
func (s *Sink) streamClient(l *connection.Link) stream.Client {
	return stream.Client{Link: l, Name: s.cfg.Stream}
}

func (s *Sink) lookUpStream(ctx context.Context, c stream.Client) error {
	found, err := c.Info(ctx)
	if errors.As(err, new(*connection.DeniedError)) {
		// The acknowledgements name the stream, so the look-up only serves to say early and well what is wrong.
		s.log.Warn("NATS does not let this user look the stream up; going on without", "stream", s.cfg.Stream)
		return nil
	}
	if err != nil {
		return err
	}
	if found == nil {
		return s.createMissing(ctx, c)
	}
	s.recordFeatures(found.Config)
	s.updateWarning("forgets", lossWarning(found))
	if err := s.checkExisting(found.Config); err != nil {
		return err
	}
	return s.readEndOfBatches(ctx, c.Link)
}

// createMissing makes the missing stream, if that is wanted.
func (s *Sink) createMissing(ctx context.Context, c stream.Client) error {
	if !s.cfg.Create.Enabled {
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q does not exist; create it for the subjects %q, or set nats.create.enabled",
			s.cfg.Stream, s.pattern)}
	}
	config := s.cfg.streamConfig(s.pattern)
	config.AllowBatchPublish = supportsBatches(c.Link.Conn().ConnectedServerVersion())
	for _, pattern := range s.routedPatterns {
		config.Subjects = addSubject(config.Subjects, pattern)
	}
	if s.fenced.Load() {
		config.Subjects = addSubject(config.Subjects, s.cfg.fencePrefix()+">")
		config.AllowMsgTTL = config.AllowMsgTTL || config.AllowBatchPublish // so that the fence outlasts max_age
	}
	if i := slices.IndexFunc(config.Subjects, func(subject string) bool { return strings.HasPrefix(subject, "*") }); i >= 0 {
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q cannot be created: it would take %q, whatever the first token is, which the server "+
			"keeps for itself; begin nats.subject, and the subjects of routes, with a word of your own, as k8s.{cluster}, or create the stream",
			s.cfg.Stream, config.Subjects[i])}
	}
	made, err := c.Create(ctx, config)
	if err != nil {
		return err
	}
	if made.Error != nil {
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q cannot be created as nats.create says", s.cfg.Stream), Err: made.Error}
	}
	s.recordFeatures(made.Config)
	s.log.Info("NATS stream created", "stream", s.cfg.Stream, "subjects", config.Subjects, "storage", config.Storage.String(),
		"replicas", config.Replicas, "maxAge", config.MaxAge, "maxBytes", config.MaxBytes, "duplicates", config.Duplicates)
	return nil
}

// recordFeatures takes note of what the stream allows.
func (s *Sink) recordFeatures(config jetstream.StreamConfig) {
	s.acceptsTTL.Store(config.AllowMsgTTL)
	s.streamEnd.batchesPossible.Store(config.AllowBatchPublish && s.warningAbout("writers") == "")
}

// supportsBatches says whether a server has fast ingest: nats-server 2.14 and later.
func supportsBatches(version string) bool {
	var major, minor int
	if n, err := fmt.Sscanf(version, "%d.%d", &major, &minor); n != 2 || err != nil {
		return false
	}
	return major > 2 || major == 2 && minor >= 14
}

// addSubject adds a subject that a stream is to take to those it takes; of one stream none may cover another.
func addSubject(subjects []string, added string) []string {
	if slices.ContainsFunc(subjects, func(s string) bool { return stream.Covers(s, added) }) {
		return subjects
	}
	subjects = slices.DeleteFunc(subjects, func(s string) bool { return stream.Covers(added, s) })
	return append(subjects, added)
}

// checkExisting checks an existing stream. What makes delivery impossible is an error, what weakens it one warning.
func (s *Sink) checkExisting(config jetstream.StreamConfig) error {
	strange, partly, covered := "", "", true
	for _, pattern := range append([]string{s.pattern}, s.routedPatterns...) {
		if !slices.ContainsFunc(config.Subjects, func(subject string) bool { return stream.Overlaps(subject, pattern) }) {
			strange = pattern
		}
		covered = covered && slices.ContainsFunc(config.Subjects, func(subject string) bool { return stream.Covers(subject, pattern) })
	}
	switch {
	case config.Mirror != nil:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q is a mirror of %q, and takes nothing else; name that one in nats.stream, or another",
			s.cfg.Stream, config.Mirror.Name)}
	case config.NoAck:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q does not acknowledge (no_ack); without that nothing can be delivered safely", s.cfg.Stream)}
	case config.Sealed:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q is sealed; name another in nats.stream", s.cfg.Stream)}
	case s.cfg.Mode == modeKV && !config.AllowRollup:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q is no key-value bucket: it does not allow roll-ups, which purge markers are", s.cfg.Stream)}
	case strange != "":
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q takes the subjects %q, and none of %q; add it to the stream, or change nats.subject or the routes",
			s.cfg.Stream, config.Subjects, strange)}
	case !covered:
		partly = fmt.Sprintf("stream %q does not take every subject that the template can give: delivery stops at the first that it does not take; it takes %q, the template is %q",
			s.cfg.Stream, config.Subjects, s.subject)
	}
	s.updateWarning("subjects", partly)
	s.updateWarning("versions", s.perSubjectLimitWarning(config))
	short := ""
	if !config.AllowBatchPublish && config.Duplicates < minSafeDuplicates {
		short = fmt.Sprintf("stream %q forgets message IDs after %v; a change sent again after an outage may be there twice: raise duplicate_window to %v, or set allow_batched",
			s.cfg.Stream, config.Duplicates, minSafeDuplicates)
	}
	s.updateWarning("duplicates", short)
	return nil
}

// perSubjectLimitWarning says what a limit of messages for each subject does to changes; "" where there is none, or it keeps the
// newest of each object.
func (s *Sink) perSubjectLimitWarning(config jetstream.StreamConfig) string {
	shared := slices.ContainsFunc(append([]string{s.cfg.Subject}, s.cfg.Routed...), func(template string) bool { return checkDistinctSubjects(template, "") != nil })
	switch {
	case config.MaxMsgsPerSubject <= 0:
		return ""
	case config.DiscardNewPerSubject:
		return fmt.Sprintf("stream %q takes %d changes for each subject and no more (discard_new_per_subject): delivery stops there; take that setting back",
			config.Name, config.MaxMsgsPerSubject)
	case shared:
		return fmt.Sprintf("stream %q keeps %d messages for each subject (max_msgs_per_subject), and several objects share one: the newest of an object may be "+
			"dropped for another one; write {group}, {resource}, {namespace} and {name} into the subject, or lift the limit", config.Name, config.MaxMsgsPerSubject)
	}
	return ""
}

// lossWarning says how a stream loses messages that it has acknowledged; "" when it does not, as far as can be seen.
func lossWarning(found *stream.Info) string {
	c, st := found.Config, found.State
	full := c.MaxBytes > 0 && st.Bytes >= c.MaxBytes/10*9 || c.MaxMsgs > 0 && st.Messages >= c.MaxMsgs/10*9
	small := c.MaxBytes > 0 && c.MaxBytes < smallStreamBytes || c.MaxMsgs > 0 && c.MaxMsgs < smallStreamMessages
	switch {
	case c.Retention == jetstream.InterestPolicy:
		return fmt.Sprintf("stream %q keeps what consumers wait for (retention: interest): without a consumer a change is acknowledged and gone; use retention: limits", c.Name)
	case c.Retention == jetstream.WorkQueuePolicy:
		return fmt.Sprintf("stream %q drops what one consumer has had (retention: workqueue): others never see it; use retention: limits", c.Name)
	case c.Discard == jetstream.DiscardOld && full && time.Since(st.FirstTime) < shortRetention:
		return fmt.Sprintf("stream %q is full, and drops changes that are %v old for new ones (discard: old); raise its limits, or use discard: new",
			c.Name, time.Since(st.FirstTime).Round(time.Second))
	case c.Discard == jetstream.DiscardOld && small:
		return fmt.Sprintf("stream %q has little room, max_bytes %d and max_msgs %d, and drops the oldest changes for new ones (discard: old); raise its limits, or use discard: new",
			c.Name, c.MaxBytes, c.MaxMsgs)
	case c.MaxAge > 0 && c.MaxAge < shortMaxAge:
		return fmt.Sprintf("stream %q drops changes after %v (max_age): a consumer that is away for longer misses them; raise it", c.Name, c.MaxAge)
	}
	return ""
}
