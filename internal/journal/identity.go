package journal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/form"
)

const secretBytes = 32

// Identity holds the facts that a journal has once: its format version, the cluster it was filled from, its ID, its
// deployment, its secret, the redaction of its contents, why its history was reset, and the signals of operators. Safe for
// concurrent use.
type Identity struct {
	store *store
	queue *queue

	mu        sync.Mutex
	recovered *Recovery
}

// Cluster returns the identity of the cluster that positions and known objects are of, as SetCluster or ResetForCluster
// last stored it; "" when none was stored.
func (i *Identity) Cluster() (string, error) { return i.store.loadText("cluster", codec.KeyCluster) }

// SetCluster stores the identity of the cluster. Durable when it returns nil.
func (i *Identity) SetCluster(ctx context.Context, uid string) error {
	return i.queue.submitText(ctx, codec.KeyCluster, uid)
}

// RenamedError reports another name of the cluster than the one that a journal was filled under. Every key and ID in the
// destinations begins with that: changes under another name are of other objects, and nothing would remove the old ones.
type RenamedError struct {
	Dir         string // of the journal
	Bound, Name string // "" is the UID
}

// Error names the directory and both names.
func (e *RenamedError) Error() string {
	return fmt.Sprintf("the journal in %s was filled under the cluster name %q, and not %q", e.Dir, e.Bound, e.Name)
}

// CheckClusterName returns a *RenamedError if the journal is bound to another name of the cluster. "" is the UID.
func (i *Identity) CheckClusterName(name string) error {
	release, err := i.store.acquire()
	if err != nil {
		return err
	}
	defer release()
	_, err = i.store.checkClusterName(name)
	return err
}

// checkClusterName is CheckClusterName, and reports whether the journal is bound at all.
func (s *store) checkClusterName(name string) (bound bool, err error) {
	stored, err := s.getValue(codec.KeyClusterName)
	if err != nil || stored == nil {
		return false, err
	}
	uid, err := s.getValue(codec.KeyCluster)
	if err == nil && cmp.Or(string(stored), string(uid)) != cmp.Or(name, string(uid)) {
		err = &RenamedError{Dir: s.dir, Bound: string(stored), Name: name}
	}
	return true, err
}

// ID returns the identifier of this journal, as Seed or SetID stored it; "" before.
func (i *Identity) ID() (string, error) { return i.store.loadText("id", codec.KeyID) }

// SetID gives the journal an ID. Durable when it returns nil.
func (i *Identity) SetID(ctx context.Context, id string) error {
	return i.queue.submitText(ctx, codec.KeyID, id)
}

// Deployment returns the identity of the deployment that the journal belongs to, and the number of the take-over of the
// replicated state that its process made last, as SetDeployment stored them; "" before.
func (i *Identity) Deployment() (id string, generation uint64, err error) {
	return i.store.loadNumbered("deployment", codec.KeyDeployment)
}

// SetDeployment stores the identity of the deployment, which has no blank, and the number of a take-over. Durable when it
// returns nil.
func (i *Identity) SetDeployment(ctx context.Context, id string, generation uint64) error {
	return i.queue.submitText(ctx, codec.KeyDeployment, id+" "+strconv.FormatUint(generation, 10))
}

// LastOwner returns the ID of the journal that another process wrote the replicated state from, and the number of its
// take-over, as SetLastOwner stored them; "" before. If there is no state later, it was lost.
func (i *Identity) LastOwner() (journal string, generation uint64, err error) {
	return i.store.loadNumbered("last owner", codec.KeyLastOwner)
}

// SetLastOwner stores the ID of a journal, which has no blank, and the number of a take-over. Durable when it returns nil.
func (i *Identity) SetLastOwner(ctx context.Context, journal string, generation uint64) error {
	return i.queue.submitText(ctx, codec.KeyLastOwner, journal+" "+strconv.FormatUint(generation, 10))
}

// Signals returns the entries that StoreSignals stored, by number.
func (i *Identity) Signals() (map[uint64][]byte, error) {
	return readStore(i.store, "signals", func(r storeReader) (map[uint64][]byte, error) {
		entries, _, err := loadSignals(r)
		return entries, err
	})
}

func loadSignals(r storeReader) (entries map[uint64][]byte, size int64, err error) {
	entries = map[uint64][]byte{}
	err = r.forEachKey(codec.PrefixSignals, func(key, value []byte) error {
		number, err := codec.SplitSignalKey(key)
		entries[number] = bytes.Clone(value)
		size += int64(len(key) + len(value))
		return err
	})
	return entries, size, err
}

// StoreSignals stores entries of the requests of operators by number, and removes those that are nil, in one write. The
// journal knows nothing else of them. Durable when it returns nil.
func (i *Identity) StoreSignals(ctx context.Context, entries map[uint64][]byte) error {
	return i.queue.submit(ctx, func(g *group) error {
		for number, value := range entries {
			if key := codec.KeySignal(number); value == nil {
				g.batch.removeKey(key)
			} else {
				g.batch.putKey(key, value)
			}
		}
		return nil
	}, nil)
}

// Secret returns 32 random bytes that belong to this journal and are stored in it. Read access to its files reveals them.
func (i *Identity) Secret() ([]byte, error) {
	release, err := i.store.acquire()
	if err != nil {
		return nil, err
	}
	defer release()
	stored, err := i.store.getValue(codec.KeySecret)
	if err != nil || len(stored) == secretBytes {
		return stored, i.store.checkCorruption("secret", err)
	}
	secret := make([]byte, secretBytes)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("journal: make a secret: %w", err)
	}
	if err := i.store.db.Set(codec.KeySecret, secret, pebble.Sync); err != nil {
		return nil, fmt.Errorf("journal: store a secret: %w", err)
	}
	return secret, nil
}

// Redaction returns the fingerprint that Rewrite stored last; "" when none was stored.
func (i *Identity) Redaction() (string, error) {
	return i.store.loadText("redaction", codec.KeyRedaction)
}

// PendingRecovery returns the broken store that Open replaced, now or in an earlier process that ended before
// RecordGapsEmitted; false when there is none. The caller emits a gap for every resource.
func (i *Identity) PendingRecovery() (Recovery, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.recovered == nil {
		return Recovery{}, false
	}
	return *i.recovered, true
}

// ResetReason returns the reason of a ResetForCluster, or what a Seed lacked, until RecordGapsEmitted is called, by this
// process or a later one; "" when there is none. The caller emits a gap for every resource.
func (i *Identity) ResetReason() (string, error) {
	return i.store.loadText("begun anew", codec.KeyResetReason)
}

// RecordGapsEmitted records that the gaps which PendingRecovery and ResetReason require are in the journal. Durable when it
// returns nil.
func (i *Identity) RecordGapsEmitted(ctx context.Context) error {
	return i.queue.submit(ctx, func(g *group) error {
		g.batch.removeKey(codec.KeyRecovery)
		g.batch.removeKey(codec.KeyResetReason)
		g.gapsEmitted = true
		return nil
	}, nil)
}

func (i *Identity) setRecovery(r *Recovery) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.recovered = r
}

// loadVersion checks the format version, or writes it into an empty store.
func (i *Identity) loadVersion() error {
	value, err := i.store.getValue(codec.KeyVersion)
	if err != nil {
		return err
	}
	if value == nil {
		return i.initializeStore()
	}
	if err := checkVersion(i.store.dir, value); err != nil {
		return err
	}
	value, err = i.store.getValue(codec.KeyRecovery)
	if err != nil || value == nil {
		return err
	}
	recovered, err := codec.DecodeRecovery(value)
	i.setRecovery(recovered)
	return err
}

// initializeStore fills a store that has no version yet, with what can be carried over from the one that it replaces, and
// writes the version last.
func (i *Identity) initializeStore() error {
	s := i.store
	if err := s.clearUnfinished(); err != nil {
		return err
	}
	recovered, err := lastRecovery(s.base, s.dir)
	if err != nil {
		return err
	}
	fill := false
	if recovered != nil {
		_, err := s.base.Stat(s.base.PathJoin(recovered.MovedTo, salvagedMarker))
		fill = err != nil
	}
	if fill {
		carried, err := salvageStore(s.base, recovered.MovedTo, s.dir, s.db)
		if err != nil {
			return err
		}
		recovered.Reason += carriedPart + carried
		s.logger.Warn("what a broken journal had is carried over as far as it could be read", "carried", carried)
	}
	b := s.db.NewBatch()
	defer b.Close()
	_ = b.Set(codec.KeyVersion, []byte(codec.VersionPrefix+codec.Version), nil) // a batch in memory does not fail
	_ = b.Delete(codec.KeySalvaging, nil)
	if recovered != nil {
		_ = b.Set(codec.KeyRecovery, codec.EncodeRecovery(*recovered), nil)
	}
	if err = b.Commit(pebble.Sync); err == nil && fill {
		err = markSalvaged(s.base, recovered.MovedTo)
	}
	i.setRecovery(recovered)
	return err
}

// clearUnfinished empties a store without a version that a process has begun to fill.
func (s *store) clearUnfinished() error {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return err
	}
	empty := !it.First()
	if err := it.Close(); err != nil || empty {
		return err
	}
	begun, err := s.getValue(codec.KeySalvaging)
	if err != nil {
		return err
	}
	if begun == nil {
		return fmt.Errorf("%w: no format version", form.ErrMalformed)
	}
	return s.db.DeleteRange([]byte{0}, []byte{math.MaxUint8}, pebble.NoSync)
}
