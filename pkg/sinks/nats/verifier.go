package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// Limits below which a stream that drops its oldest messages raises a warning.
const (
	smallStreamBytes    = 64 << 20
	smallStreamMessages = 10_000
	shortRetention      = time.Hour // a consumer that is away for so long misses changes
)

const (
	lookInterval    = time.Minute // between two looks at a stream in use, which may be edited at any time
	maxLookDuration = time.Second // a stream that is silent for so long is looked at in the next minute
)

// minSafeDuplicates is a duplicate window that outlasts a reconnect and a back-off before a message is sent again.
const minSafeDuplicates = time.Minute

// streamFeatures are the settings of the stream as of the last look-up. They are safe for concurrent use.
type streamFeatures struct {
	stream   string
	warnings *warnings

	verified      atomic.Bool // the stream was looked up, and no answer since then contradicts it
	allowsBatches atomic.Bool // allow_batched is set
	otherWriter   atomic.Bool // another client publishes to the stream
	elected       atomic.Bool // other processes may replace this one: it publishes in batches only
	acceptsTTL    atomic.Bool // messages may expire (allow_msg_ttl)
	allowsDirect  atomic.Bool // any replica may be asked for messages (allow_direct)
}

func (f *streamFeatures) recordConfig(config jetstream.StreamConfig) {
	f.acceptsTTL.Store(config.AllowMsgTTL)
	f.allowsDirect.Store(config.AllowDirect)
	f.allowsBatches.Store(config.AllowBatchPublish)
}

// takesBatches reports whether changes go to the stream in batches.
func (f *streamFeatures) takesBatches() bool {
	return f.allowsBatches.Load() && (f.elected.Load() || !f.otherWriter.Load())
}

// invalidate makes the next use look the stream up again: it may have been edited or deleted. The look-up may use the batch
// publisher, so a Publish calls invalidate only when it is done with that.
func (f *streamFeatures) invalidate() { f.verified.Store(false) }

// recordOtherWriter records that another client publishes to the stream, for example to this subject. Batches start at the
// stream's end, so they wait for a moment between its messages; without an election changes go by message ID from then on.
func (f *streamFeatures) recordOtherWriter(subject string) {
	effect := "changes go by message ID now, one at a time for each object; give the exporter a stream of its own, then restart it"
	if f.elected.Load() {
		effect = "each batch has to start between its messages, so delivery is slower the more it writes; give the exporter a " +
			"stream of its own"
	}
	if !f.otherWriter.Swap(true) {
		f.warnings.setWarning(topicWriters, fmt.Sprintf("another writer publishes to stream %q, for example to %q: %s",
			f.stream, subject, effect))
	}
}

// streamVerifier looks the stream up before its first use, creates it if the configuration allows, and checks its settings.
// It is safe for concurrent use.
type streamVerifier struct {
	cfg      Config
	log      *slog.Logger
	patterns []string // wildcard subjects that cover the sink's template, which is the first, and those of routes
	features *streamFeatures
	warnings *warnings
	end      *streamEnd
	lastLook atomic.Pointer[time.Time]
	lock     chan struct{} // capacity 1; held during a look-up, so that the other callers wait for its result

	// afterCheck runs when an existing stream was found and suits. Its error makes the look-up fail.
	afterCheck func(ctx context.Context, l *connection.Link) error
}

// ensureVerified returns nil when the stream exists and takes the subjects of the sink. One caller looks it up, within
// ackTimeout; the others wait for the result. A stream in use is looked at again every minute.
func (v *streamVerifier) ensureVerified(ctx context.Context, l *connection.Link) error {
	if v.features.verified.Load() {
		return v.lookAgain(ctx, v.cfg.streamClient(l))
	}
	bounded, cancel := context.WithTimeout(ctx, v.cfg.AckTimeout)
	defer cancel()
	err := v.verifyOnce(bounded, l)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		silent := fmt.Errorf("JetStream does not answer about stream %q within %v", v.cfg.Stream, v.cfg.AckTimeout)
		return cmp.Or(l.EndingError(), connection.TimeoutError(silent))
	}
	return err
}

func (v *streamVerifier) verifyOnce(ctx context.Context, l *connection.Link) error {
	select {
	case v.lock <- struct{}{}:
		defer func() { <-v.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if v.features.verified.Load() {
		return nil
	}
	now := time.Now()
	v.lastLook.Store(&now)
	err := v.lookUpStream(ctx, v.cfg.streamClient(l))
	v.features.verified.Store(err == nil)
	return err
}

// lookAgain checks the settings of a stream in use, every minute. How changes are sent does not change here, because a
// Publish may be running. No answer, or none to this user, is no fault: whether the stream can be used shows at a Publish.
func (v *streamVerifier) lookAgain(ctx context.Context, c stream.Client) error {
	now, last := time.Now(), v.lastLook.Load()
	if now.Sub(*last) < lookInterval || !v.lastLook.CompareAndSwap(last, &now) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(maxLookDuration, v.cfg.AckTimeout))
	defer cancel()
	found, err := c.Info(ctx)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	if found != nil {
		v.end.recordSighting(found)
		err = v.checkExisting(found)
	}
	if found == nil || err != nil || found.Config.AllowBatchPublish && !v.features.allowsBatches.Load() {
		v.features.invalidate()
	}
	return err
}

func (v *streamVerifier) lookUpStream(ctx context.Context, c stream.Client) error {
	found, err := c.Info(ctx)
	switch {
	case errors.As(err, new(*connection.DeniedError)):
		// Delivery does not need the look-up, because every acknowledgement names the stream. It only detects errors early.
		v.log.Warn("NATS does not allow this user to look up the stream; continuing without", "stream", v.cfg.Stream)
		return nil
	case err != nil:
		return err
	case found == nil:
		return v.createMissing(ctx, c)
	}
	v.features.recordConfig(found.Config)
	v.end.recordSighting(found)
	if err := v.checkExisting(found); err != nil {
		return err
	}
	return v.afterCheck(ctx, c.Link)
}

func (v *streamVerifier) createMissing(ctx context.Context, c stream.Client) error {
	if !v.cfg.Create.Enabled {
		return &sinks.UnavailableError{
			Code: condition.SinkTargetMissing, Reason: fmt.Sprintf("stream %q does not exist", v.cfg.Stream),
			Remedy: fmt.Sprintf("create it for the subjects %q, or set nats.create.enabled", v.patterns[0]),
		}
	}
	config := v.newStreamConfig(supportsBatches(c.Link.Conn().ConnectedServerVersion()))
	if i := slices.IndexFunc(config.Subjects, func(subject string) bool { return strings.HasPrefix(subject, "*") }); i >= 0 {
		return &sinks.UnavailableError{
			Code: condition.SinkMisconfigured,
			Reason: fmt.Sprintf("stream %q cannot be created: it would take %q, with any first token, which the server reserves",
				v.cfg.Stream, config.Subjects[i]),
			Remedy: "start nats.subject, and the subjects of routes, with a fixed word, as in k8s.{cluster}, or create the stream",
		}
	}
	made, err := c.Create(ctx, config)
	if err != nil {
		return err
	}
	if made.Error != nil {
		return &sinks.UnavailableError{
			Code: condition.SinkMisconfigured, Err: made.Error,
			Reason: fmt.Sprintf("stream %q cannot be created with the settings of nats.create: %v", v.cfg.Stream, made.Error),
			Remedy: "correct nats.create, or create the stream",
		}
	}
	v.features.recordConfig(made.Config)
	v.end.recordSighting(made)
	v.log.Info("NATS stream created", "stream", v.cfg.Stream, "subjects", config.Subjects, "storage", config.Storage.String(),
		"replicas", config.Replicas, "maxAge", config.MaxAge, "maxBytes", config.MaxBytes, "duplicates", config.Duplicates)
	return nil
}

// newStreamConfig returns the settings of the stream to create: the subjects of the sink, of routes, and of the fence.
func (v *streamVerifier) newStreamConfig(batches bool) jetstream.StreamConfig {
	config := v.cfg.streamConfig(v.patterns[0])
	config.AllowBatchPublish = batches
	for _, pattern := range v.patterns[1:] {
		config.Subjects = addSubject(config.Subjects, pattern)
	}
	config.Subjects = addSubject(config.Subjects, v.cfg.fencePrefix()+">") // a replicated state needs it, today or later
	config.AllowMsgTTL = config.AllowMsgTTL || batches                     // the fence must outlast max_age
	return config
}

// supportsBatches reports whether a server version has fast ingest: nats-server 2.14 and later.
func supportsBatches(version string) bool {
	var major, minor int
	if n, err := fmt.Sscanf(version, "%d.%d", &major, &minor); n != 2 || err != nil {
		return false
	}
	return major > 2 || major == 2 && minor >= 14
}

// addSubject adds a subject to those of a stream. The server refuses a stream with subjects that cover each other.
func addSubject(subjects []string, added string) []string {
	if slices.ContainsFunc(subjects, func(s string) bool { return stream.Covers(s, added) }) {
		return subjects
	}
	subjects = slices.DeleteFunc(subjects, func(s string) bool { return stream.Covers(added, s) })
	return append(subjects, added)
}

// checkExisting checks an existing stream: settings that make delivery impossible are an error, those that weaken it raise a
// warning.
func (v *streamVerifier) checkExisting(found *stream.Info) error {
	config := found.Config
	v.warnings.setWarning(topicRetention, lossWarning(v.cfg, found))
	if reason, remedy := v.unusableReason(config); reason != "" {
		return &sinks.UnavailableError{Code: condition.SinkMisconfigured, Reason: reason, Remedy: remedy}
	}
	partly, short := "", ""
	if slices.ContainsFunc(v.patterns, func(pattern string) bool {
		return !slices.ContainsFunc(config.Subjects, func(subject string) bool { return stream.Covers(subject, pattern) })
	}) {
		partly = fmt.Sprintf("stream %q does not take every subject of the template: delivery stops at the first one that it "+
			"does not take; it takes %q, the template is %q",
			v.cfg.Stream, config.Subjects, v.cfg.Subject)
	}
	if !config.AllowBatchPublish && config.Duplicates < minSafeDuplicates {
		short = fmt.Sprintf("stream %q forgets message IDs after %v; a change that is resent after an outage may be stored "+
			"twice: raise duplicate_window to %v, or set allow_batched",
			v.cfg.Stream, config.Duplicates, minSafeDuplicates)
	}
	v.warnings.setWarning(topicSubjects, partly)
	v.warnings.setWarning(topicVersions, v.perSubjectLimitWarning(config))
	v.warnings.setWarning(topicDuplicates, short)
	return nil
}

// patternOf returns the wildcard subject of the sink, or of a route, that covers a subject; "" if none does.
func (v *streamVerifier) patternOf(subject string) string {
	if i := slices.IndexFunc(v.patterns, func(pattern string) bool { return stream.Covers(pattern, subject) }); i >= 0 {
		return v.patterns[i]
	}
	return ""
}

// unusableReason returns why nothing can be delivered to a stream, with the remedy; "" if it can be used.
func (v *streamVerifier) unusableReason(config jetstream.StreamConfig) (reason, remedy string) {
	strange := ""
	for _, pattern := range v.patterns {
		if !slices.ContainsFunc(config.Subjects, func(subject string) bool { return stream.Overlaps(subject, pattern) }) {
			strange = pattern
		}
	}
	switch {
	case config.Mirror != nil:
		return fmt.Sprintf("stream %q is a mirror of %q and takes no messages", v.cfg.Stream, config.Mirror.Name),
			"set nats.stream to that one, or to another"
	case config.NoAck:
		return fmt.Sprintf("stream %q does not acknowledge (no_ack), so nothing can be delivered safely", v.cfg.Stream),
			"create the stream without no_ack"
	case config.Sealed:
		return fmt.Sprintf("stream %q is sealed", v.cfg.Stream), "name another in nats.stream"
	case v.cfg.Mode == modeKV && !config.AllowRollup:
		return fmt.Sprintf("stream %q is no key-value bucket: it does not allow roll-ups, which purge markers need", v.cfg.Stream),
			"set nats.stream to the stream of a bucket, KV_NAME"
	case strange != "":
		return fmt.Sprintf("stream %q takes the subjects %q, and none of %q", v.cfg.Stream, config.Subjects, strange),
			"add it to the stream, or change nats.subject or the routes"
	}
	return "", ""
}

// perSubjectLimitWarning returns how a limit of messages per subject affects delivery; "" if there is no limit, or if the
// stream keeps the newest message of each object.
func (v *streamVerifier) perSubjectLimitWarning(config jetstream.StreamConfig) string {
	shared := slices.ContainsFunc(append([]string{v.cfg.Subject}, v.cfg.Routed...), func(template string) bool { return checkDistinctSubjects(template, "") != nil })
	switch {
	case config.MaxMsgsPerSubject <= 0:
		return ""
	case config.DiscardNewPerSubject:
		return fmt.Sprintf("stream %q takes %d changes for each subject and no more (discard_new_per_subject): delivery stops "+
			"there; remove that setting",
			config.Name, config.MaxMsgsPerSubject)
	case shared:
		return fmt.Sprintf("stream %q keeps %d messages for each subject (max_msgs_per_subject), and several objects share one: "+
			"the newest of an object may be dropped for another one; write {cluster}, {group}, {resource}, {namespace} and {name} into "+
			"the subject, or lift the limit", config.Name, config.MaxMsgsPerSubject)
	}
	return ""
}

// lossWarning returns how the stream may lose acknowledged messages by its settings; "" if it does not. It may drop what
// consumers had an hour to read, or what create.maxAge names; a bucket may drop no current value.
func lossWarning(c Config, found *stream.Info) string {
	s, st := found.Config, found.State
	limited := s.MaxBytes > 0 || s.MaxMsgs > 0
	full := s.MaxBytes > 0 && st.Bytes >= s.MaxBytes/10*9 || s.MaxMsgs > 0 && st.Messages >= s.MaxMsgs/10*9
	small := s.MaxBytes > 0 && s.MaxBytes < smallStreamBytes || s.MaxMsgs > 0 && s.MaxMsgs < smallStreamMessages
	switch {
	case s.Retention == jetstream.InterestPolicy:
		return fmt.Sprintf("stream %q keeps only messages that a consumer waits for (retention: interest): without a consumer a "+
			"change is acknowledged and lost; use retention: limits", s.Name)
	case s.Retention == jetstream.WorkQueuePolicy:
		return fmt.Sprintf("stream %q drops a message once one consumer has it (retention: workqueue): other consumers miss it; "+
			"use retention: limits", s.Name)
	case c.Mode == modeKV && (s.MaxAge > 0 || s.Discard == jetstream.DiscardOld && limited):
		return fmt.Sprintf("stream %q drops old values, by max_age, or by max_bytes or max_msgs with discard: old: objects that do "+
			"not change disappear from the bucket; remove the limits, or use discard: new", s.Name)
	case s.Discard == jetstream.DiscardOld && full && time.Since(st.FirstTime) < shortRetention:
		return fmt.Sprintf("stream %q is full, and drops changes that are not an hour old for new ones (discard: old); raise its "+
			"limits, or use discard: new", s.Name)
	case s.Discard == jetstream.DiscardOld && small:
		return fmt.Sprintf("stream %q is small, max_bytes %d and max_msgs %d, and drops the oldest changes for new ones "+
			"(discard: old); raise its limits, or use discard: new", s.Name, s.MaxBytes, s.MaxMsgs)
	case s.MaxAge > 0 && s.MaxAge < shortRetention && s.MaxAge != c.Create.MaxAge:
		return fmt.Sprintf("stream %q drops changes after %v (max_age): a consumer that is away for longer misses them; raise it",
			s.Name, s.MaxAge)
	}
	return ""
}
