// Command history measures the sink of a history on a mix of Pods: changes a second, processor time of a change, memory, and
// bytes on disk. It runs the load once without a sink and once with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/history"
	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

func main() {
	objects := flag.Int("objects", 8000, "Pods at the start")
	changes := flag.Int("changes", 200_000, "changes after that")
	dir := flag.String("dir", "", "folder of the history; default: one that is removed")
	profile := flag.String("cpuprofile", "", "file for a profile")
	flag.Parse()
	if err := measure(*objects, *changes, *dir, *profile); err != nil {
		fmt.Fprintln(os.Stderr, "history:", err)
		os.Exit(1)
	}
}

func measure(objects, changes int, dir, profile string) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp(".", "history"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	// Of ten objects of a corpus six are Pods.
	c, err := corpus.New(corpus.Options{Objects: objects * 10 / 6, Changes: changes * 10 / 6, Seed: 1})
	if err != nil {
		return err
	}
	without, n, err := run(c, func([]sinks.Message) error { return nil })
	if err != nil {
		return err
	}
	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	s, err := history.New(history.Config{Dir: dir})
	if err != nil {
		return err
	}
	var publishing time.Duration
	var offset uint64
	with, _, err := run(c, func(batch []sinks.Message) error {
		for i := range batch {
			offset++
			batch[i].Offset = offset
		}
		began := time.Now()
		_, err := s.Publish(context.Background(), "rows", batch)
		publishing += time.Since(began)
		s.ObserveSettled(offset)
		return err
	})
	if err = errors.Join(err, s.Close(context.Background())); err != nil {
		return err
	}
	var files int
	var bytes int64
	err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if strings.HasSuffix(path, ".parquet") {
			files++
			bytes += info.Size()
		}
		return err
	})
	fmt.Printf("%d changes: %.0f a second in Publish, %.1f µs of processor time each, %.1f MB in %d files; memory %d MB, without %d MB\n",
		n, float64(n)/publishing.Seconds(), float64((with.cpu-without.cpu).Microseconds())/float64(n), float64(bytes)/1e6, files, with.rss>>20, without.rss>>20)
	return err
}

type cost struct {
	cpu time.Duration
	rss int64
}

// run makes the changes and passes them in batches.
func run(c *corpus.Corpus, publish func([]sinks.Message) error) (total cost, n int, err error) {
	last := map[string][]byte{}
	var batch []sinks.Message
	var size int
	before := used()
	flush := func() error {
		err := publish(batch)
		batch, size = batch[:0], 0
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		total.rss = max(total.rss, int64(m.Sys-m.HeapReleased))
		return err
	}
	for i, e := range c.Entries() {
		if e.Resource != corpus.Pods {
			continue
		}
		key, at := c.Key(e.Object), time.Date(2026, 11, 28, 12, 0, 0, i*66_000, time.UTC)
		_, place, _ := strings.Cut(key, "/")
		namespace, name, _ := strings.Cut(place, "/")
		change := &event.Change{Type: event.Updated, Cluster: "bench", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: namespace, Name: name, UID: c.UID(e.Object), ResourceVersion: strconv.FormatUint(e.RV, 10), ObservedAt: at,
			ChangedAt: event.ChangeTime{At: at, NotBefore: at.Add(-time.Second), Source: event.TimeFromManagedFields}, Actor: &event.Actor{Manager: "kubelet"}}
		switch e.Type {
		case corpus.Added:
			change.Type = event.Added
		case corpus.Deleted:
			change.Type = event.Deleted
		}
		if e.Type == corpus.Deleted {
			delete(last, key)
		} else {
			change.After = c.AppendObject(nil, e)
			if e.Type == corpus.Modified {
				change.Changed = diff.Values(last[key], change.After)
			}
			last[key] = change.After
		}
		n++
		batch, size = append(batch, sinks.Message{Change: change}), size+change.Size()
		if len(batch) == 4096 || size > 16<<20 {
			if err := flush(); err != nil {
				return total, n, err
			}
		}
	}
	if len(batch) > 0 {
		err = flush()
	}
	total.cpu = used() - before
	return total, n, err
}

func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
