package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/state"
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
	j, declared := cfg.Journal, journalDeclaration(cfg)
	o := journal.Options{
		Dir: j.Dir, Sinks: declared.Sinks, Starts: declared.Starts, Destinations: declared.Destinations, ReadBack: declared.ReadBack, KeepEvidence: declared.KeepEvidence, ClusterName: declared.ClusterName,
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
	var renamed *journal.RenamedError
	if !errors.As(err, &renamed) {
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

// journalDeclaration returns what a configuration requires of the journal.
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
