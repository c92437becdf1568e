package attribution

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// BenchmarkSilence has changes wait for audit events of which none comes. It tells what one of them takes of memory, what
// looking at all of them costs, which is done five times a second, and what one collection of the garbage costs while so
// many wait, for which the stream waits, too.
func BenchmarkSilence(b *testing.B) {
	for _, waiting := range []int{10_000, 30_000} {
		b.Run(strconv.Itoa(waiting), func(b *testing.B) {
			before := heapAfterGC()
			j := NewMatcher(Limits{Settle: 40 * time.Second, Window: 10 * time.Minute, Bytes: floodBytes})
			for n := range waiting {
				c, _ := ChangeOf(unnamedRecord(n))
				j.AddChange(c)
			}
			held := float64(len(j.changes.all))
			after := heapAfterGC()
			b.ReportAllocs()
			start := cpuTime(b)
			for b.Loop() {
				j.Resolve(testTime(waiting))
			}
			b.ReportMetric(float64((cpuTime(b)-start).Nanoseconds())/float64(b.N), "CPU-ns/op")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/held, "B/held")
			b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/held, "objects/held")
			full := measureGC(b)
			runtime.KeepAlive(j) // alive until here, garbage below
			runtime.GC()
			b.ReportMetric(full-measureGC(b), "CPU-ms/GC") // more than without a join
		})
	}
}

// unnamedRecord is a record of the journal: all of its strings are its own.
func unnamedRecord(n int) event.Record {
	return event.Record{Offset: uint64(n + 1), Change: &event.Change{
		Type: event.Updated, Cluster: strings.Clone("dev"), Resource: event.Resource{
			Group: strings.Clone("apps"), Version: strings.Clone("v1"), Resource: strings.Clone("deployments"),
			Kind: strings.Clone("Deployment"),
		},
		Namespace: strings.Clone("shop"), Name: fmt.Sprintf("db-%d", n%1000), UID: fmt.Sprintf("%036d", n%1000),
		ResourceVersion: strconv.Itoa(1_000_000 + n), Previous: strconv.Itoa(999_000 + n), ObservedAt: testTime(n),
	}}
}
