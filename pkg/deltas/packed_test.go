package deltas

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func FuzzWhatIsKnownComesBackFromItsPackedForm(f *testing.F) {
	f.Add("6f1d3c9e-8a57-4f0e-9d0b-3c5a7e2b1f44", "123456789", "summary", false)
	f.Add("6F1D3C9E-8A57-4F0E-9D0B-3C5A7E2B1F44", "0123", "", true)
	f.Add("6f1d3c9e-8a57-4f0e-9d0b3c5a7e2b1f44--", "18446744073709551616", "\x00", false)
	f.Add("", "", "", true)
	f.Add(strings.Repeat("u", 300), "-1", strings.Repeat("s", 300), false)
	f.Fuzz(func(t *testing.T, uid, rv, summary string, gone bool) {
		k := event.Known{Key: "k", UID: uid, ResourceVersion: rv, Summary: summary, Gone: gone}
		if got := pack(k).known("k"); got != k {
			t.Errorf("%+v came back as %+v", k, got)
		}
	})
}

// What is remembered of an object must stay small: there may be a million of them.
func BenchmarkKnownBytes(b *testing.B) {
	for _, writers := range []int{2, 3} {
		b.Run(fmt.Sprint(writers, " writers"), func(b *testing.B) {
			const objects = 100_000
			for b.Loop() {
				before := heap()
				set := newKnownSet(nil)
				for i := range objects {
					summary := AppendParts(nil, Parts{})
					for w := range writers {
						summary = AppendWriter(summary, uint64(w), 1, 2, 3000)
					}
					set.put(event.Known{
						Key: fmt.Sprintf("namespace-%d/app-7d9c6b8f5d-%05d", i%100, i), UID: fmt.Sprintf("6f1d3c9e-8a57-4f0e-9d0b-%012x", i),
						ResourceVersion: fmt.Sprint(1_000_000 + i), Summary: string(summary),
					})
				}
				b.ReportMetric(float64(heap()-before)/objects, "B/object")
				runtime.KeepAlive(set)
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
