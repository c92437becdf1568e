package attribution

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
)

// floodBytes is the default of audit.maxPending.
const floodBytes = 64 << 20

// floodEvent is an event of a patch as the webhook hands it over: all of its strings are its own.
func floodEvent(n int) audit.Event {
	own := strings.Clone
	return audit.Event{
		ID: fmt.Sprintf("%036d", n), Stage: own(audit.Complete), Verb: own("patch"), Code: 200,
		User: own("system:serviceaccount:shop:operator"), Groups: []string{own("system:serviceaccounts"), own("system:authenticated")},
		UserAgent: own("operator/v1.2.3 (linux/amd64) kubernetes/abcdef0"), SourceIPs: []string{own("192.0.2.7")},
		Received: audit.Time(epoch.UnixNano() + int64(n)), Done: audit.Time(epoch.UnixNano() + int64(n) + 1),
		Resource: own("configmaps"), Namespace: own("shop"), Name: own("db"),
		Answer: audit.Object{UID: fmt.Sprintf("%036d", n), ResourceVersion: fmt.Sprint(n)},
	}
}

// BenchmarkFlood takes requests that nobody has a change for, at the bound, as in a flood that goes on. It tells what one of
// them takes of memory while it waits, and what one collection of the garbage costs while so many wait.
func BenchmarkFlood(b *testing.B) {
	j := NewMatcher(Limits{Settle: 40 * time.Second, Window: 10 * time.Minute, Bytes: floodBytes})
	before := heapAfterGC()
	n := 0
	take := func() {
		n++
		j.AddRequest(&Request{Event: floodEvent(n), Origin: "api", Arrived: testTime(n / 4)})
		if n%800 == 0 { // of five times a second
			j.Resolve(testTime(n / 4))
			j.TakeFindings()
		}
	}
	for j.requests.evicted == 0 {
		take()
	}
	j.TakeFindings()
	held := float64(n - 1)
	after := heapAfterGC()
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		take()
	}
	b.ReportMetric(float64((cpuTime(b)-start).Nanoseconds())/float64(b.N), "CPU-ns/op")
	b.StopTimer()
	b.ReportMetric(held, "held")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/held, "B/held")
	b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/held, "objects/held")
	full := measureGC(b)
	runtime.KeepAlive(j)
	j = nil
	runtime.GC()
	b.ReportMetric(full-measureGC(b), "CPU-ms/GC") // more than with an empty join
}

// heapAfterGC is what is used of memory when all garbage is gone.
func heapAfterGC() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// measureGC is the CPU of one collection of the garbage, in milliseconds.
func measureGC(b *testing.B) float64 {
	const times = 20
	start := cpuTime(b)
	for range times {
		runtime.GC()
	}
	return float64((cpuTime(b) - start).Microseconds()) / 1000 / times
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
