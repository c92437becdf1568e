package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
)

// The history of the benchmarks: Pods of 30 namespaces, each listed and then changed a few times, once a millisecond.
const (
	benchObjects = 30_000
	benchChanges = 120_000
)

var benchStart = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// openBench writes the history of the benchmarks, and opens it.
func openBench(b *testing.B) *History {
	b.Helper()
	dir := b.TempDir()
	w, err := history.OpenWriter(history.Folder(dir))
	if err != nil {
		b.Fatal(err)
	}
	filler := strings.Repeat(`{"name":"container","image":"registry.example.com/team/service:1.2.3","resources":{"limits":{"cpu":"1"}}},`, 16)
	var rows []history.Row
	flush := func() {
		batch, err := w.NewBatch(rows)
		if err == nil {
			err = batch.Commit()
		}
		if err != nil {
			b.Fatal(err)
		}
		rows = rows[:0]
	}
	number := uint64(0)
	add := func(kind string, object, version int) {
		number++
		row := history.Row{Facts: history.Facts{Cluster: "c", Version: "v1", Resource: "pods", Kind: "Pod", Type: kind, ResourceVersion: fmt.Sprint(version),
			ObservedAt: benchStart.Add(time.Duration(number) * time.Millisecond)}}
		if object >= 0 {
			row.Namespace, row.Name, row.UID = fmt.Sprint("ns-", object%30), fmt.Sprint("pod-", object), fmt.Sprint("uid-", object)
			row.Object = fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":"%d"},"spec":{"containers":[%s{}]},"status":{"n":%d}}`, row.Name, version, filler, version)
			row.Changed = []history.Difference{{Path: "/status/n", From: "1", To: "2"}}
		}
		if kind == "updated" {
			row.ChangedAt, row.NotBefore = row.ObservedAt, row.ObservedAt.Add(-time.Second)
		}
		if rows = append(rows, row); len(rows) == 4096 {
			flush()
		}
	}
	add("snapshot.begin", -1, 1)
	for i := range benchObjects {
		add("snapshot", i, i+1)
	}
	add("snapshot.end", -1, benchObjects)
	for i := range benchChanges {
		add("updated", i*7919%benchObjects, benchObjects+i+1)
	}
	flush()
	for more := true; more; {
		if more, err = w.Compact(false); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	h, err := Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.Close() }) //nolint:errcheck // it was only read
	return h
}

// BenchmarkQuestions asks what people ask; the bounds are 0.2 s for the log of an object, 0.5 s for half an hour of a
// namespace, and 2 s for the state of 30,000 objects.
func BenchmarkQuestions(b *testing.B) {
	h := openBench(b)
	pods := []event.Resource{{Version: "v1", Resource: "pods", Kind: "Pod"}}
	middle := benchStart.Add((benchObjects + benchChanges/2) * time.Millisecond)
	for name, ask := range map[string]func() (int, error){
		"log of an object": func() (n int, err error) {
			err = h.Log(b.Context(), LogOptions{Scope: Scope{pods, "ns-7", "pod-67"}}, func(*Entry) error { n++; return nil })
			return n, err
		},
		"log of a namespace": func() (n int, err error) {
			o := LogOptions{Scope: Scope{Namespace: "ns-7"}, Since: Moment{Time: middle}, Until: Moment{Time: middle.Add(30 * time.Second)}}
			err = h.Log(b.Context(), o, func(*Entry) error { n++; return nil })
			return n, err
		},
		"state": func() (n int, err error) {
			_, err = h.Get(b.Context(), Scope{Types: pods}, Moment{Time: middle}, func(*history.Row) error { n++; return nil })
			return n, err
		},
		"state by version": func() (n int, err error) {
			_, err = h.Get(b.Context(), Scope{Types: pods}, Moment{Version: fmt.Sprint(benchObjects + benchChanges/2)}, func(*history.Row) error { n++; return nil })
			return n, err
		},
	} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				var err error
				if n, err = ask(); err != nil || n == 0 {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(n), "rows")
		})
	}
}
