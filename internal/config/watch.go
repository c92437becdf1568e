package config

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watchDebounce is the delay between an event of a file and the call: most writers are done by then. A later write causes
// another call.
const watchDebounce = 200 * time.Millisecond

// configMapDataLink is the symbolic link that the kubelet replaces to change all files of a mounted ConfigMap or Secret at
// once.
const configMapDataLink = "..data"

// Watch calls changed once at the start, to cover earlier changes, and whenever the file may have changed, until ctx ends:
// it was written, replaced by rename, as editors do, or changed behind a symbolic link, as in a mounted ConfigMap. changed
// is called from the goroutine of Watch. Directories are watched instead of the file, which may be deleted and recreated.
// Watch returns nil when ctx ends, or an error if the file cannot be watched.
func Watch(ctx context.Context, path string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch file %s: %w", path, err)
	}
	defer func() { _ = w.Close() }() // read-only
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
		case <-w.Errors: //nolint:errcheck // whatever the reason, events were lost: call changed
			settled = time.After(watchDebounce)
		case <-settled:
			settled, real = nil, followLinks(w, path)
			changed()
		}
	}
}

// followLinks also watches the directory of the file that path resolves to, and returns that file.
func followLinks(w *fsnotify.Watcher, path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path // it does not exist; the watch of its own directory reports its creation
	}
	_ = w.Add(filepath.Dir(real)) // if this fails, changes of the link itself are still noticed
	return real
}
