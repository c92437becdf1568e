package journal

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal/disk"
)

// Bounds of a journal that is opened to be edited: nothing is trimmed, and nothing waits for space.
const (
	keepEverything = 100 * 365 * 24 * time.Hour
	unbounded      = 1 << 60
)

// EditStopped opens the journal of an exporter that does not run, calls edit, and closes it. The declared sinks stay as they
// are, and nothing is trimmed. Its errors are those of [OpenOffline] and of edit; here the lock is exclusive.
func EditStopped(ctx context.Context, dir string, edit func(*Journal) error) error {
	if err := checkPresent(dir); err != nil {
		return err
	}
	j, err := openStopped(dir)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- j.Run(running) }()
	err = edit(j)
	stop()
	return errors.Join(err, <-done, j.Close())
}

// openStopped is [Open] without a declaration, for a store that can be read: a broken one is left as it is.
func openStopped(dir string) (*Journal, error) {
	opts := Options{
		Dir: dir, KeepSettled: keepEverything, MaxBytes: unbounded, MaxDeadLetters: unbounded, Logger: slog.New(slog.DiscardHandler),
	}.withDefaults()
	s, err := lockStore(opts)
	if err != nil {
		return nil, err
	}
	j := newJournal(s, opts)
	if err = checkReadable(dir); err == nil {
		if err = s.tryOpen(j.loadParts); err != nil {
			err = explainOpenError(dir, err)
		}
	}
	if err != nil {
		s.decoder.Close()
		return nil, errors.Join(err, s.lock.Close())
	}
	return j, nil
}

// checkReadable opens the store for reading only, so that one that cannot be read is not written to. The caller has locked
// the directory.
func checkReadable(dir string) error {
	o, err := openUnlocked(dir)
	if err != nil {
		return err
	}
	o.lock = disk.NopLock{}
	return o.Close()
}
