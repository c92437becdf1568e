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

// BenchmarkSilence has changes wait for audit events that never arrive. It reports the memory of a waiting change, the cost
// of one round of resolving, which runs five times a second, and the CPU time of one garbage collection while so many wait.
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
			runtime.KeepAlive(j) // live until here, garbage below
			runtime.GC()
			b.ReportMetric(full-measureGC(b), "CPU-ms/GC") // beyond that without a matcher
		})
	}
}

// unnamedRecord is a record of the journal that shares no strings.
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
