package config

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watchDebounce is how long after something has happened to a file it is looked at: whoever writes it is done by then,
// mostly. If not, it is looked at once more.
const watchDebounce = 200 * time.Millisecond

// configMapDataLink is the link that the kubelet swaps to change all files of a mounted ConfigMap or Secret at once.
const configMapDataLink = "..data"

// Watch calls changed once, for what happened before, and whenever something may have happened to a file, until ctx ends:
// written, replaced by another of its name, as editors do, or changed behind a link, as in a mounted ConfigMap. Directories
// are watched, not the file, which may go and come. An error says that it cannot be watched.
func Watch(ctx context.Context, path string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch file %s: %w", path, err)
	}
	defer func() { _ = w.Close() }() // nothing is written
	real := followLinks(w, path)
	if err := w.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch file %s: %w", path, err)
	}
	settled := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.Events:
			name := filepath.Base(e.Name)
			if settled == nil && (name == filepath.Base(path) || name == filepath.Base(real) || name == configMapDataLink) {
				settled = time.After(watchDebounce)
			}
		case <-w.Errors: //nolint:errcheck // events were lost, whatever the reason: so it is looked at
			settled = time.After(watchDebounce)
		case <-settled:
			settled, real = nil, followLinks(w, path)
			changed()
		}
	}
}

// followLinks watches the directory that a path leads to, too, and returns where that is.
func followLinks(w *fsnotify.Watcher, path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path // it is not there; its own directory says when it is
	}
	_ = w.Add(filepath.Dir(real)) // what happens to the link itself is seen anyway
	return real
}
