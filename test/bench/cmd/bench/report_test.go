package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kubecdc/kubecdc/test/bench/verify"
)

// sampleCosts are costs that meet all bars of two loads; tests change them.
func sampleCosts() []costs {
	floor := measurement{CPUMicros: 10, PerSecond: 100, P50: 0.2, P99: 0.5}
	bulk := measurement{CPUMicros: 30, PerSecond: 70, Total: phase{PeakRSS: mixedRSSBar}}
	slow := measurement{CPUMicros: 400, P50: 0.7, P99: 3}
	usual := measurement{CPUMicros: 390, Total: phase{PeakRSS: 5 * mixedRSSBar}}
	return []costs{
		{Load: "mixed, bulk", Floor: floor, Exporter: bulk, Baseline: &usual, Shares: []share{{"decoding", 16.6, 4.6}, {"delivery", 2, 0.5}}},
		{Load: "mixed, 200/s", Rate: 200, Floor: floor, Exporter: slow, Shares: []share{{"delivery", 70, 70}}},
	}
}

func TestEachCostHasItsBar(t *testing.T) {
	for what, spoil := range map[string]func([]costs){
		"":                     func([]costs) {},
		"3.01 floors":          func(c []costs) { c[0].Exporter.CPUMicros, c[0].Baseline.CPUMicros = 30.1, 500 },
		"changes/s: 0.69":      func(c []costs) { c[0].Exporter.PerSecond = 69 },
		"peak RSS: 111 MiB":    func(c []costs) { c[0].Exporter.Total.PeakRSS, c[0].Baseline.Total.PeakRSS = 111<<20, 1<<40 },
		"1/12.9 of the":        func(c []costs) { c[0].Baseline.CPUMicros = 388 },
		"0.201 of the":         func(c []costs) { c[0].Baseline.Total.PeakRSS = mixedRSSBar * 498 / 100 },
		"median: 0.51 ms":      func(c []costs) { c[1].Exporter.P50 = 0.71 },
		"99 %: 2.51 ms":        func(c []costs) { c[1].Exporter.P99 = 3.01 },
		"bulk: the exporter's": func(c []costs) { c[0].Exporter.Delivered.Lost = 1 },
	} {
		r := &report{Costs: sampleCosts()}
		spoil(r.Costs)
		r.judge()
		if len(r.Missed) > 1 || strings.Join(r.Missed, "") == "" != (what == "") || !strings.Contains(strings.Join(r.Missed, ""), what) {
			t.Errorf("%s: missed %q", what, r.Missed)
		}
	}
}

func TestLossMissesABar(t *testing.T) {
	for _, d := range []verify.Result{{Lost: 1}, {OutOfOrder: 1}, {Wrong: 1}, {Control: 1}} {
		r := &report{Measurements: []measurement{{System: "exporter", Delivered: d}}}
		r.judge()
		if len(r.Missed) != 1 || (options{}).judge(r) == nil || (options{noBars: true}).judge(r) != nil {
			t.Errorf("%+v: missed %q", d, r.Missed)
		}
	}
	r := &report{Measurements: []measurement{{System: "exporter", Delivered: verify.Result{Duplicates: 1}}}}
	if r.judge(); len(r.Missed) != 0 {
		t.Errorf("a duplicate is allowed, missed %q", r.Missed)
	}
}

func TestTheTableHasEveryLoadAndShare(t *testing.T) {
	table := (&report{Costs: sampleCosts()}).table()
	for _, want := range []string{
		"| mixed, bulk: CPU µs a change | 10.0 | 30.0 | 390.0 |\n", "| mixed, 200/s: p50 / p99, ms | 0.20 / 0.50 | 0.70 / 3.00 | – |\n",
		"| decoding | 17 (4.6) | – |\n", "| delivery | 2 (0.5) | 70 (70.0) |\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in:\n%s", want, table)
		}
	}
}

func TestMediansAreOfEachNumber(t *testing.T) {
	m := medians([]measurement{{CPUMicros: 3, P99: 10}, {CPUMicros: 1, P99: 30, Delivered: verify.Result{Lost: 2}}, {CPUMicros: 2, P99: 20}})
	if m.CPUMicros != 2 || m.P99 != 20 || m.Delivered.Lost != 2 {
		t.Errorf("%+v", m)
	}
}

func TestAProfileIsDividedIntoParts(t *testing.T) {
	const line = "-----------+-------------------------------------------------------\n"
	traces := "File: exporter\n" + line +
		"      30ms   runtime.memmove\n             github.com/klauspost/compress/zstd.(*Encoder).EncodeAll\n" +
		"             github.com/kubecdc/kubecdc/pkg/sinks/kafka/record.openZstd.func1\n" + line +
		"    pebble:  flush\n      10ms   runtime.scanobject\n             github.com/cockroachdb/pebble/v2.(*DB).flush1\n" + line +
		"     1.96s   internal/runtime/syscall/linux.Syscall6\n             golang.org/x/net/http2.(*ClientConn).readLoop\n"
	want := []share{{"system calls", 98, 1960}, {"zstd for Kafka", 1.5, 30}, {"Pebble", 0.5, 10}}
	got := sharesOf(traces, 1000)
	for i, s := range got {
		if s.Of != want[i].Of || int(s.Micros+0.5) != int(want[i].Micros) || int(10*s.Percent+0.5) != int(10*want[i].Percent+0.5) {
			t.Errorf("%+v, want %+v", s, want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%+v", got)
	}
}

func TestShapingMissesItsBarByTheLeastOfItsRounds(t *testing.T) {
	for fast, missed := range map[float64]int{57.5: 0, 57.6: 1} {
		s := &shaping{Ways: shapingWays()}
		for i := range s.Ways {
			s.Ways[i].Micros = []float64{90, 50, 70}
		}
		s.Ways[1].Micros = []float64{80, 90, fast}
		s.compare()
		r := &report{Shaping: s}
		if r.judge(); len(r.Missed) != missed {
			t.Errorf("%v: missed %q", fast, r.Missed)
		}
		var b bytes.Buffer
		if r.print(&b); !strings.Contains(b.String(), "default  1.15") || !strings.Contains(b.String(), "(bar 1.150)") {
			t.Errorf("%s", b.String())
		}
	}
}

func TestUnknownSystemIsRefused(t *testing.T) {
	if _, err := parseOptions([]string{"-only", "other"}); err == nil {
		t.Error("accepted")
	}
}

func TestAStartMissesItsBars(t *testing.T) {
	good := startup{Live: 9, Server: 1, PeakRSS: startRSSBar, Restart: restartBar.Seconds()}
	if missed := good.missed(); len(missed) != 0 {
		t.Errorf("missed %q", missed)
	}
	for name, bad := range map[string]startup{
		"peak RSS":                 {PeakRSS: startRSSBar + 1},
		"restart to the first new": {Restart: restartBar.Seconds() + 0.1},
		"at most 1.5s":             {Restart: restartManyBar.Seconds() + 0.1, Partitions: 1000},
		"streaming lists":          {Read: [2]int64{0, 1}},
		"1 twice, 0 wrong":         {Delivery: verify.Result{Duplicates: 1}},
		"objects of the st":        {Delivery: verify.Result{Lost: 1}},
	} {
		if missed := bad.missed(); len(missed) != 1 || !strings.Contains(missed[0], name) {
			t.Errorf("%s: missed %q", name, missed)
		}
	}
}

func TestTheEndOfAStreamingListIsFoundWhereverItIsCut(t *testing.T) {
	text := strings.Repeat(`{"type":"ADDED","object":{}}`+"\n", 50_000) +
		`{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"creationTimestamp":null}}}` + "\n"
	for _, r := range []io.Reader{strings.NewReader(text), iotest.HalfReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
		if n, err := drop(r); n != int64(len(text)) || err != nil {
			t.Errorf("read %d of %d: %v", n, len(text), err)
		}
	}
	if _, err := drop(strings.NewReader(text[:1000])); err == nil {
		t.Error("a stream that is cut is taken for whole")
	}
}
