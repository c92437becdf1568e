package config

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// watchedTree is a directory with a configuration file, which a test changes.
type watchedTree struct {
	*testing.T
	dir string
}

func (w watchedTree) path(elements ...string) string {
	return filepath.Join(append([]string{w.dir}, elements...)...)
}

func (w watchedTree) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// write makes the directory of a file, too.
func (w watchedTree) write(content string, elements ...string) {
	w.must(os.MkdirAll(filepath.Dir(w.path(elements...)), 0o700))
	w.must(os.WriteFile(w.path(elements...), []byte(content), 0o600))
}

func (w watchedTree) link(to, name string) { w.must(os.Symlink(to, w.path(name))) }

// relink replaces a link as the kubelet does.
func (w watchedTree) relink(to, name string) {
	w.link(to, "new")
	w.must(os.Rename(w.path("new"), w.path(name)))
}

// TestEveryKindOfFileChangeIsNoticed changes what the path leads to, in each way in which editors, the kubelet and
// deployment tools do. Each step is noticed once.
func TestEveryKindOfFileChangeIsNoticed(t *testing.T) {
	type step = func(watchedTree)
	const file = "config.yaml"
	write := func(w watchedTree) { w.write("a", file) }
	for name, steps := range map[string][]step{
		"truncated and written in place": {write, func(w watchedTree) { w.write("b", file) }},
		"renamed by an editor": {write, func(w watchedTree) {
			w.write("b", "new")
			w.must(os.Rename(w.path("new"), w.path(file)))
		}},
		"removed and made again": {write, func(w watchedTree) { w.must(os.Remove(w.path(file))) }, write},
		"unreadable for a while": {write, func(w watchedTree) {
			w.must(os.Remove(w.path(file)))
			w.must(os.Mkdir(w.path(file), 0o700))
		}, func(w watchedTree) {
			w.must(os.Remove(w.path(file)))
			w.write("a", file)
		}},
		"a ConfigMap": {func(w watchedTree) {
			w.write("a", "..1", file)
			w.link("..1", "..data")
			w.link("..data/config.yaml", file)
		}, func(w watchedTree) {
			w.write("b", "..2", file)
			w.relink("..2", "..data")
			w.must(os.RemoveAll(w.path("..1")))
		}},
		"behind two links": {func(w watchedTree) {
			w.write("a", "far", "real.yaml")
			w.link("far/real.yaml", "near")
			w.link("near", file)
		}, func(w watchedTree) { w.write("b", "far", "real.yaml") },
			func(w watchedTree) {
				w.write("c", "further", "real.yaml")
				w.relink("further/real.yaml", "near")
			}},
		"in a linked directory that is kept": {func(w watchedTree) {
			w.write("a", "releases", "1", "real.yaml")
			w.write("b", "releases", "2", "real.yaml")
			w.link("releases/1", "current")
			w.link("current/real.yaml", file)
		}, func(w watchedTree) { w.relink("releases/2", "current") },
			func(w watchedTree) { w.write("c", "releases", "2", "real.yaml") }},
		"in a directory that is renamed into place": {func(w watchedTree) {
			w.write("a", "in", "real.yaml")
			w.link("in/real.yaml", file)
		}, func(w watchedTree) { w.must(os.Rename(w.path("in"), w.path("old"))) }, func(w watchedTree) {
			w.write("b", "next", "real.yaml")
			w.must(os.Rename(w.path("next"), w.path("in")))
		}, func(w watchedTree) { w.write("c", "in", "real.yaml") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := watchedTree{t, t.TempDir()}
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				var noticed atomic.Int64
				for i, change := range steps {
					change(w)
					if i == 0 {
						go Watch(ctx, w.path(file), func() { noticed.Add(1) })
					}
					for range 10 { // more looks than are needed
						time.Sleep(lookInterval)
						synctest.Wait()
					}
					if n := noticed.Load(); n != int64(i+1) {
						t.Errorf("%d changes noticed after step %d", n, i)
					}
					w.write("x", "neighbour")
				}
				stop()
				synctest.Wait()
			})
		})
	}
}

// TestFileIsNotTakenHalf writes on between any two looks.
func TestFileIsNotTakenHalf(t *testing.T) {
	w := watchedTree{t, t.TempDir()}
	w.write("", "config.yaml")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var noticed atomic.Int64
		go Watch(ctx, w.path("config.yaml"), func() { noticed.Add(1) })
		time.Sleep(2*lookInterval + 1)
		for content := "a"; len(content) < 10; content += "a" {
			w.write(content, "config.yaml")
			time.Sleep(lookInterval)
		}
		if synctest.Wait(); noticed.Load() != 1 {
			t.Errorf("%d calls, and only the one at the start was due", noticed.Load())
		}
		time.Sleep(2 * lookInterval)
		if synctest.Wait(); noticed.Load() != 2 {
			t.Errorf("%d calls after the file was complete", noticed.Load())
		}
		stop()
	})
}
