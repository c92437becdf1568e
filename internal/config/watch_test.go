package config

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestEveryKindOfFileChangeIsNoticed writes a file in place, replaces it as editors do, and swaps the link behind it as the
// kubelet does for a mounted ConfigMap.
func TestEveryKindOfFileChangeIsNoticed(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(path string) { must(os.WriteFile(path, []byte("x"), 0o600)) }
	for name, way := range map[string]struct{ prepare, change func(dir, path string) }{
		"written in place": {func(_, path string) { write(path) }, func(_, path string) { write(path) }},
		"replaced": {func(_, path string) { write(path) }, func(dir, path string) {
			write(filepath.Join(dir, "new"))
			must(os.Rename(filepath.Join(dir, "new"), path))
		}},
		"deleted and made": {func(_, path string) { write(path) }, func(_, path string) {
			must(os.Remove(path))
			write(path)
		}},
		"a ConfigMap": {func(dir, path string) {
			must(os.Mkdir(filepath.Join(dir, "..1"), 0o700))
			write(filepath.Join(dir, "..1", "config.yaml"))
			must(os.Symlink("..1", filepath.Join(dir, configMapDataLink)))
			must(os.Symlink(filepath.Join(configMapDataLink, "config.yaml"), path))
		}, func(dir, _ string) {
			must(os.Mkdir(filepath.Join(dir, "..2"), 0o700))
			write(filepath.Join(dir, "..2", "config.yaml"))
			must(os.Symlink("..2", filepath.Join(dir, "..data_tmp")))
			must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, configMapDataLink)))
			must(os.RemoveAll(filepath.Join(dir, "..1")))
		}},
		"behind a link": {func(dir, path string) {
			must(os.Mkdir(filepath.Join(dir, "elsewhere"), 0o700))
			write(filepath.Join(dir, "elsewhere", "real.yaml"))
			must(os.Symlink(filepath.Join("elsewhere", "real.yaml"), path))
		}, func(dir, _ string) { write(filepath.Join(dir, "elsewhere", "real.yaml")) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "config.yaml")
			way.prepare(dir, path)
			ctx, stop := context.WithCancel(t.Context())
			noticed, done := make(chan struct{}, 100), make(chan error, 1)
			go func() { done <- Watch(ctx, path, func() { noticed <- struct{}{} }) }()
			<-noticed // the call at the start
			write(filepath.Join(dir, "neighbour"))
			way.change(dir, path)
			<-noticed
			stop()
			must(<-done)
		})
	}
}

func TestFileWithoutDirectoryIsNotWatched(t *testing.T) {
	if err := Watch(t.Context(), filepath.Join(t.TempDir(), "none", "config.yaml"), func() {}); err == nil {
		t.Error("no error")
	}
}
