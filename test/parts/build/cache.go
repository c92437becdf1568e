package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const lockPoll = 200 * time.Millisecond

// CacheDir returns the directory that keeps built programs: KUBECDC_CACHE, or .cache at the root of the repository.
// It may not exist yet.
func CacheDir() (string, error) {
	if dir := os.Getenv("KUBECDC_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, ".cache"), nil
}

// artifact is a file or directory in the cache.
type artifact struct {
	title string                                                 // what it is, for the reader of a progress line
	takes string                                                 // how long it takes to make, the same
	path  string                                                 // where it will be
	make  func(ctx context.Context, temporary, log string) error // makes it at another path, with its output in log
}

// provide returns the artifact's path and makes it first if it is not there.
func (a artifact) provide(ctx context.Context) (string, error) {
	if exists(a.path) {
		return a.path, nil
	}
	if err := os.MkdirAll(filepath.Dir(a.path), 0o755); err != nil {
		return "", fmt.Errorf("cache of test parts: %w", err)
	}
	unlock, err := a.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(a.path) { // made by the process that had the lock
		return a.path, nil
	}
	return a.path, a.build(ctx)
}

// Provide returns a path in the cache. If nothing is there, it calls create with a temporary path, which is renamed when
// create has returned. title and takes describe the artifact and the time that it needs, for the output.
func Provide(ctx context.Context, title, takes, path string, create func(ctx context.Context, temporary, log string) error) (string, error) {
	return artifact{title, takes, path, create}.provide(ctx)
}

// build makes the artifact beside its place and moves it there. The caller holds the lock, so the names are its own,
// and what an interrupted build left there can go.
func (a artifact) build(ctx context.Context) error {
	temporary := a.path + ".tmp"
	if err := os.RemoveAll(temporary); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "building %s (once, %s)…\n", a.title, a.takes)
	began := time.Now()
	if err := a.make(ctx, temporary, a.path+".log"); err != nil {
		return errors.Join(fmt.Errorf("build %s: %w", a.title, err), os.RemoveAll(temporary))
	}
	if err := os.Rename(temporary, a.path); err != nil {
		return fmt.Errorf("build %s: %w", a.title, err)
	}
	fmt.Fprintf(os.Stderr, "built %s in %v\n", a.title, time.Since(began).Round(time.Second))
	return nil
}

// lock takes the artifact's lock, or waits for the process that builds it. The lock file stays: removing it would let
// two processes lock two files of one name.
func (a artifact) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(a.path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock for building %s: %w", a.title, err)
	}
	said := false
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		locked, err := tryLock(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		if locked {
			return func() { f.Close() }, nil // closing releases the lock
		}
		if !said {
			said = true
			fmt.Fprintf(os.Stderr, "waiting for another process that builds %s…\n", a.title)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for another process that builds %s: %w", a.title, ctx.Err()), f.Close())
		case <-poll.C:
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
