package journal

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
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
	j := startJournal(b, Options{Dir: b.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}})
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
					Resource: resourceNamed(scope), Scope: scope, Changes: []*event.Change{c},
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
			_ = j.Settle(context.Background(), "main", event.Cursor{Low: low}, nil)
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
	b.ReportMetric(float64(b.N)/float64(st.Commits), "changes/commit")
	b.ReportMetric(float64(peakRSS())/1024, "peak-MiB")
	m := j.store.db.Metrics()
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
	j := startJournal(b, Options{Dir: b.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}, TailBytes: 1})
	for n := range stored {
		j.mustAppend(event.Observation{Resource: resourceNamed("s"), Scope: "s", Changes: []*event.Change{podChange(n, 4096)}})
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

// BenchmarkOneChangeAtATime appends one change and waits until it can be read: what an idle journal adds to its latency.
func BenchmarkOneChangeAtATime(b *testing.B) {
	j := startJournal(b, Options{Dir: b.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}})
	c := podChange(1, 4096)
	b.ResetTimer()
	for n := range b.N {
		j.mustAppend(event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Position: c.ResourceVersion})
		if _, err := j.Read(context.Background(), uint64(n)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPaced appends changes of about 4 KiB at a steady rate a second, as a busy API server makes them, and reads and
// settles them. One op is one change.
func BenchmarkPaced(b *testing.B) {
	const distinct = 4096
	changes := make([]*event.Change, distinct)
	for i := range changes {
		changes[i] = podChange(i, 4096)
	}
	for _, rate := range []int{200, 2000, 18000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			j := startJournal(b, Options{Dir: b.TempDir(), Declaration: Declaration{Sinks: []string{"main"}}})
			b.ResetTimer()
			cpu, begin := cpuTime(), time.Now()
			latencies := make(chan []time.Duration)
			appended := make([]time.Time, b.N)
			go func() {
				var all []time.Duration
				for after := uint64(0); after < uint64(b.N); {
					records, err := j.Read(context.Background(), after)
					if err != nil {
						b.Error(err)
						break
					}
					after = records[len(records)-1].Offset
					for _, r := range records {
						all = append(all, time.Since(appended[r.Offset-1]))
					}
				}
				latencies <- all
			}()
			settling, stop := context.WithCancel(context.Background())
			go func() {
				for settling.Err() == nil {
					_ = j.Settle(settling, "main", event.Cursor{Low: j.Newest()}, nil)
					time.Sleep(200 * time.Millisecond)
				}
			}()
			for n := range b.N {
				if due := begin.Add(time.Duration(n) * time.Second / time.Duration(rate)); time.Until(due) > 0 {
					time.Sleep(time.Until(due))
				}
				c := changes[n%distinct]
				appended[n] = time.Now()
				j.mustAppend(event.Observation{
					Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Position: c.ResourceVersion,
					Known: []event.Known{{Key: c.Namespace + "/" + c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}},
				})
			}
			all := <-latencies
			stop()
			slices.Sort(all)
			st := j.Stat()
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(b.N)/float64(st.Commits), "changes/commit")
		})
	}
}
