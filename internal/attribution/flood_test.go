package attribution

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
)

// floodBytes is the default of audit.maxPending.
const floodBytes = 64 << 20

// floodEvent is an event of a patch as the webhook passes it on: it shares no strings.
func floodEvent(n int) audit.Event {
	own := strings.Clone
	return audit.Event{
		ID: fmt.Sprintf("%036d", n), Stage: own(audit.Complete), Verb: own("patch"), Code: 200, Outcome: audit.Stored,
		User: own("system:serviceaccount:shop:operator"), Groups: []string{own("system:serviceaccounts"), own("system:authenticated")},
		UserAgent: own("operator/v1.2.3 (linux/amd64) kubernetes/abcdef0"), SourceIPs: []string{own("192.0.2.7")},
		Received: audit.Time(epoch.UnixNano() + int64(n)), Done: audit.Time(epoch.UnixNano() + int64(n) + 1),
		Resource: own("configmaps"), Namespace: own("shop"), Name: own("db"),
		Answer: audit.Object{UID: fmt.Sprintf("%036d", n), ResourceVersion: fmt.Sprint(n)},
	}
}

// BenchmarkFlood adds requests without changes at the memory bound, as in a lasting flood. It reports the memory of a
// waiting request, and the CPU time of one garbage collection while so many wait.
func BenchmarkFlood(b *testing.B) {
	j := NewMatcher(Limits{Settle: 40 * time.Second, Window: 10 * time.Minute, Bytes: floodBytes})
	before := heapAfterGC()
	n := 0
	take := func() {
		n++
		j.AddRequest(&Request{Event: floodEvent(n), Origin: "api", Arrived: testTime(n / 4)})
		if n%800 == 0 { // five times a second at this rate
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
	b.ReportMetric(full-measureGC(b), "CPU-ms/GC") // beyond that with an empty matcher
}

// heapAfterGC returns the memory in use after a garbage collection.
func heapAfterGC() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// measureGC returns the CPU time of one garbage collection in milliseconds.
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
