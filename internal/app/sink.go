package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/history"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/auth"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/sinks/stdout"
	"github.com/kubecdc/kubecdc/pkg/sinks/webhook"
)

// memory is what a composition continues from: the journal and, with a replicated state, the claim of this process on that.
// It outlives a composition if the next one has the same settings of both, so that a reload does not open the journal again
// and keeps the turn.
type memory struct {
	id        string // see memoryIdentity
	journal   *journal.Journal
	replica   *replica // nil without a replicated state
	signals   *signalControl
	recovered string // why the journal was broken and replaced by a new one; "" if it was not

	journalTask, signalTask *task // nil before start
	closing                 sync.Once
}

// memoryIdentity identifies the settings that the memory depends on. What the journal holds is redacted when it is opened,
// before anything reads it.
func memoryIdentity(cfg *config.Config) string {
	all := struct {
		Journal   config.Journal
		Redaction string
		StateSink config.Sink
	}{Journal: cfg.Journal, Redaction: redactionFingerprint(cfg)}
	if s, err := sinkConfigByName(cfg, cfg.State.Sink); err == nil {
		all.StateSink = s
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(fmt.Sprintf("the configuration is plain data: %v", err))
	}
	sum := sha256.Sum256(text) // hashed, because the text holds passwords
	return hex.EncodeToString(sum[:])
}

// openMemory opens the journal and makes the replica. The journal does not run yet.
func openMemory(s *shared, cfg *config.Config) (m *memory, err error) {
	m = &memory{id: memoryIdentity(cfg)}
	j := cfg.Journal
	o := journal.Options{
		Dir: j.Dir, Declaration: journalDeclaration(cfg),
		MaxBytes: int64(j.MaxBytes), MaxDeadLetters: int64(j.MaxDeadLetters), Reserve: int64(j.Reserve), KeepSettled: j.Keep, Logger: s.log,
	}
	if j.Sync == "interval" {
		o.SyncInterval = 200 * time.Millisecond
	}
	if m.journal, err = journal.Open(o); err != nil {
		return nil, refuseRenamed(cfg, err)
	}
	if recovery, pending := m.journal.PendingRecovery(); pending {
		m.recovered = recovery.Reason // kept, because a takeover of the replicated state ends what is pending
	}
	if cfg.State.Enabled() {
		if m.replica, err = newReplica(s, cfg, m.journal); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	if m.signals, err = newSignalControl(m.journal, m.replica, s.log); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// refuseRenamed returns the refusal of a configuration with another name of the cluster than the journal is bound to, and
// err otherwise.
func refuseRenamed(cfg *config.Config, err error) error {
	renamed, found := errors.AsType[*journal.RenamedError](err)
	if !found {
		return err
	}
	name := strconv.Quote(renamed.Bound)
	if renamed.Bound == "" {
		name = "no name (the UID of the cluster)"
	}
	return cfg.Refuse("cluster.name", config.Problem{
		Message: "the journal in " + renamed.Dir + " was filled under another name, with which the keys and IDs of all records begin",
		Found:   strconv.Quote(renamed.Name),
		Expected: name + "; or, for another name, another journal.dir and state.name: everything is sent again under the new name, " +
			"and what was sent under the old one stays in the destinations",
	})
}

func journalDeclaration(cfg *config.Config) (d journal.Declaration) {
	d.ClusterName, d.Starts, d.Destinations = cfg.Cluster.Name, map[string]journal.Start{}, map[string]string{}
	for _, s := range cfg.Sinks {
		d.Sinks = append(d.Sinks, s.Name)
		d.Destinations[s.Name] = s.Destination()
		if removesOrphans(s) {
			d.ReadBack = append(d.ReadBack, s.Name)
		}
		switch s.Start {
		case config.StartSnapshot:
			d.Starts[s.Name] = journal.StartSnapshot
		case config.StartNow:
			d.Starts[s.Name] = journal.StartNow
		}
	}
	if cfg.Audit.Enabled() {
		d.Sinks, d.KeepEvidence = append(d.Sinks, attribution.Sink), true
	}
	d.Lasting = []string{attribution.HolderSink} // what is held back is released, whatever routes say now
	if cfg.AwaitsAuthors() {
		d.Sinks = append(d.Sinks, attribution.HolderSink)
	}
	if cfg.State.Enabled() {
		d.Sinks = append(d.Sinks, state.Sink)
	}
	return d
}

// start runs the journal, and ends signals in time.
func (m *memory) start(failed func(error)) {
	m.journalTask = startTask("journal", m.journal.Run, failed)
	m.signalTask = startTask("signals in time", func(ctx context.Context) error {
		return m.signals.run(ctx, m.replica.isActive)
	}, failed)
}

// close stops the journal, which every other part writes to, and releases everything. Later calls do nothing.
func (m *memory) close() (err error) {
	m.closing.Do(func() {
		m.signalTask.stop()
		m.journalTask.stop()
		err = m.replica.closeState()
		if failed := m.journal.Close(); failed != nil {
			err = errors.Join(err, fmt.Errorf("close journal: %w", failed))
		}
	})
	return err
}

// Destination is a configured sink without a pipeline, to see whether it can be reached. It is not safe for concurrent use.
type Destination struct{ sink *configuredSink }

// OpenDestination makes the configured sink with a name, without the state of an earlier process. It opens no connection.
// The caller closes it.
func OpenDestination(cfg *config.Config, name string) (*Destination, error) {
	setRoutedTopics(cfg)
	s, err := sinkConfigByName(cfg, name)
	if err != nil {
		return nil, err
	}
	sink, err := newSink(s, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", name, err)
	}
	return &Destination{sink}, restoreWithoutState(sink.sink)
}

// Ping checks that the destination can be reached, each server of it, which may take until ctx ends. supported is false if
// the sink has no ping: what accepts a connection may still refuse what is sent.
func (d *Destination) Ping(ctx context.Context) (supported bool, err error) {
	pinger, supported := d.sink.sink.(sinks.Pinger)
	if supported {
		err = pinger.Ping(ctx)
	}
	if servers, ok := d.sink.sink.(sinks.ServerChecker); ok && err == nil {
		err = servers.CheckServers(ctx)
	}
	return supported, err
}

// Warning returns a guarantee that the destination does not have, as far as a ping shows; "" if there is none.
func (d *Destination) Warning() string {
	if reporter, ok := d.sink.sink.(sinks.ConditionReporter); ok {
		for _, c := range reporter.Conditions() {
			if c.Code == condition.SinkMayLose {
				return c.Cause
			}
		}
	}
	return ""
}

// Close closes the sink. It takes a few seconds at most.
func (d *Destination) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return d.sink.sink.Close(ctx)
}

// publishTruncated publishes one message, truncated step by step until it is small enough.
func publishTruncated(ctx context.Context, s sinks.Sink, m sinks.Message) error {
	for {
		err := publishOne(ctx, s, m)
		if rejected, found := errors.AsType[*sinks.RejectedError](err); !found || !rejected.TooLarge {
			return err
		}
		smaller, ok := shape.TruncateOnce(m.Change)
		if !ok {
			return err
		}
		m.Change = smaller
	}
}

func publishOne(ctx context.Context, s sinks.Sink, m sinks.Message) error {
	lane, err := s.Lane(m.Change)
	if router, ok := s.(sinks.Router); ok {
		lane, err = router.LaneTo(m.Change, m.Topic)
	}
	if err != nil {
		return err
	}
	_, err = s.Publish(ctx, lane, []sinks.Message{m})
	return err
}

type configuredSink struct {
	sink sinks.Sink
	name string
	kind string // as the status page shows it
	// layout identifies the settings that the names of lanes depend on and do not contain. Stored positions of lanes are
	// valid for one layout only.
	layout string
}

// newSink makes the configured sink. It opens no connection.
func newSink(s config.Sink, log *slog.Logger) (*configuredSink, error) {
	f, err := s.ParseFormat()
	if err != nil {
		return nil, err
	}
	c := &configuredSink{name: s.Name}
	var where string
	switch {
	case s.Kafka != nil:
		c.kind, where = "kafka", s.Kafka.Topic
		c.sink, err = kafka.New(*s.Kafka, f, log)
	case s.NATS != nil:
		c.kind, where = "nats", s.NATS.StreamName()
		c.sink, err = nats.New(*s.NATS, f, log)
	case s.Webhook != nil:
		c.kind, where = "webhook", s.Webhook.Origin()
		c.sink, err = webhook.New(*s.Webhook, f)
	case s.History != nil:
		c.kind, where = "history", s.History.Where()
		c.sink, err = history.New(*s.History)
	default:
		c.kind, where = "stdout", s.Stdout.Path
		c.sink, err = stdout.New(*s.Stdout, f)
	}
	if err != nil {
		return nil, err
	}
	c.layout = c.kind + " " + strconv.Quote(where)
	return c, nil
}

// sinkConfigByName returns the configuration of a sink. The error has the code of wrong usage.
func sinkConfigByName(cfg *config.Config, name string) (config.Sink, error) {
	for _, s := range cfg.Sinks {
		if s.Name == name {
			return s, nil
		}
	}
	return config.Sink{}, exit.With(exit.Usage, fmt.Errorf("no sink %q is configured", name))
}

// restoreWithoutState prepares a stateful sink that starts without a stored state.
func restoreWithoutState(s sinks.Sink) error {
	stateful, ok := s.(sinks.Stateful)
	if !ok {
		return nil
	}
	return stateful.RestoreState(nil, 0, func(context.Context) error { return nil })
}

// recordSemanticsVersion is part of deliveryFingerprint. Raise it when a new version of the program sends other changes to a
// lane, or in another order, or makes another number of records of a change: the state of a sink counts records.
const recordSemanticsVersion = "1"

// deliveryFingerprint identifies the settings that determine which changes a sink gets, in which order and format, and
// where. A state that was stored under another fingerprint is invalid. New fields of the configuration are part of it unless
// they are removed here.
func deliveryFingerprint(s config.Sink) string {
	s.Stdout, s.History = nil, nil // not stateful
	s.DeadLetters, s.OnOversize = config.DeadLetters{}, ""
	if s.Start != config.StartNow { // otherwise it skips first lists
		s.Start = ""
	}
	s.Watermarks = 0   // each names its sinks, whatever the configuration is by now
	if s.NATS != nil { // its state depends on the stream only
		s.NATS = &nats.Config{Stream: s.NATS.StreamName()}
	}
	if s.Webhook != nil { // it is stored, and the rest of the URL and headers may hold secrets
		s.Webhook = &webhook.Config{URL: s.Webhook.Origin()}
	}
	if s.Kafka != nil {
		k := *s.Kafka
		k.TLS, k.SASL, k.ClientID, k.RequestTimeout = auth.TLS{}, auth.SASL{}, "", 0
		k.Repair = false                                         // deletes behind snapshots are changes like others
		k.CreateTopics, k.CheckTopics = kafka.CreateTopics{}, "" // the number of partitions is in the names of lanes
		k.Compression, k.BatchBytes = "", 0                      // records are counted, not batches
		k.Registry = kafka.Registry{Encoding: strings.TrimPrefix(k.Registry.Encoding, kafka.EncodingAvro)}
		s.Kafka = &k
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("the configuration of a sink is plain data: %v", err))
	}
	return recordSemanticsVersion + " " + string(b)
}
