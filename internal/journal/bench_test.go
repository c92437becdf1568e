package journal

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func peakRSS() (kb int) {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "VmHWM:") {
			_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &kb)
		}
	}
	return kb
}

// BenchmarkAppendCommitRead appends changes of about 4 KiB from ten scopes, makes them durable on the real disk, reads
// them back by one live sink and settles as it goes. One op is one change.
func BenchmarkAppendCommitRead(b *testing.B) {
	const scopes, distinct = 10, 4096
	changes := make([]*event.Change, distinct)
	bytes := 0
	for i := range changes {
		changes[i] = podChange(i, 4096)
		bytes += len(changes[i].After)
	}
	j := start(b, Options{Dir: b.TempDir(), Sinks: []string{"main"}})
	runtime.GC()
	b.SetBytes(int64(bytes / distinct))
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	var wg sync.WaitGroup
	for s := range scopes {
		wg.Go(func() {
			scope := fmt.Sprintf("scope-%d", s)
			for n := s; n < b.N; n += scopes {
				c := changes[n%distinct]
				if err := j.Append(context.Background(), event.Observation{
					Resource: resource(scope), Scope: scope, Changes: []*event.Change{c},
					Known:    []event.Known{{Key: c.Namespace + "/" + c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}},
					Position: c.ResourceVersion,
				}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	settled := make(chan struct{})
	reads := make(chan uint64, 1)
	go func() {
		defer close(settled)
		for low := range reads {
			_ = j.Settle(context.Background(), "main", Cursor{Low: low}, nil)
		}
	}()
	for after := uint64(0); after < uint64(b.N); {
		records, err := j.Read(context.Background(), after)
		if err != nil {
			b.Fatal(err)
		}
		after = records[len(records)-1].Offset
		select {
		case reads <- after:
		default:
		}
	}
	wg.Wait()
	close(reads)
	<-settled
	b.StopTimer()
	st := j.Stat()
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(b.N)/float64(st.Frames), "changes/frame")
	b.ReportMetric(float64(peakRSS())/1024, "peak-MiB")
	m := j.db.Metrics()
	b.ReportMetric(float64(m.DiskSpaceUsage())/(1<<20), "disk-MiB")
	var written uint64
	for _, l := range m.Levels {
		written += l.TableBytesFlushed + l.TableBytesCompacted
	}
	b.ReportMetric(float64(written+m.WAL.BytesWritten)/float64(bytes/distinct*b.N), "written/byte")
}

// BenchmarkReadBehind reads changes of about 4 KiB from disk, as a sink does that is far behind.
func BenchmarkReadBehind(b *testing.B) {
	const stored = 20000
	j := start(b, Options{Dir: b.TempDir(), Sinks: []string{"main"}, TailBytes: 1})
	for n := range stored {
		j.append(event.Observation{Resource: resource("s"), Scope: "s", Changes: []*event.Change{podChange(n, 4096)}})
	}
	j.waitFor(stored)
	b.ReportAllocs()
	b.ResetTimer()
	after := uint64(0)
	for n := 0; n < b.N; {
		records, err := j.Read(context.Background(), after)
		if err != nil {
			b.Fatal(err)
		}
		n += len(records)
		if after = records[len(records)-1].Offset; after == stored {
			after = 0
		}
	}
}
