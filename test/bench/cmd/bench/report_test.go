package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kubecdc/kubecdc/test/bench/verify"
)

// sample is a report of two systems; tests change its numbers.
func sample(cpu float64, rss int64) *report {
	ours := measurement{System: "exporter", CPUMicros: cpu, PerSecond: 2, Sync: phase{PeakRSS: rss}, Total: phase{CPU: 1, PeakRSS: rss}}
	theirs := measurement{System: "baseline", CPUMicros: 100, PerSecond: 1, Sync: phase{PeakRSS: 1000}, Total: phase{CPU: 10, PeakRSS: 1000}}
	return &report{Measurements: []measurement{theirs, ours}}
}

func TestBarsAreOneFifth(t *testing.T) {
	for _, c := range []struct {
		cpu    float64
		rss    int64
		missed []string
	}{
		{cpu: 20, rss: 200},
		{cpu: 20.1, rss: 200, missed: []string{"CPU per change"}},
		{cpu: 20, rss: 201, missed: []string{"peak RSS"}},
		{cpu: 30, rss: 300, missed: []string{"CPU per change", "peak RSS"}},
	} {
		r := sample(c.cpu, c.rss)
		r.judge()
		if len(r.Missed) != len(c.missed) {
			t.Errorf("CPU %v, RSS %d: missed %q, want %q", c.cpu, c.rss, r.Missed, c.missed)
			continue
		}
		for i, want := range c.missed {
			if !strings.HasPrefix(r.Missed[i], want) {
				t.Errorf("CPU %v, RSS %d: missed %q, want %q", c.cpu, c.rss, r.Missed, c.missed)
			}
		}
	}
}

func TestLossMissesTheBarWithoutABaseline(t *testing.T) {
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

func TestReportNamesBothSystemsAndTheRatios(t *testing.T) {
	r := sample(10, 100)
	r.judge()
	var b bytes.Buffer
	r.print(&b)
	for _, want := range []string{"baseline  exporter", "CPU per change 0.100 (bar 0.200)", "peak RSS 0.100 (bar 0.200)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
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
	good := startup{Live: 9, Server: 1, PeakRSS: startRSSBar, Restart: 3}
	if missed := good.missed(); len(missed) != 0 {
		t.Errorf("missed %q", missed)
	}
	for name, bad := range map[string]startup{
		"peak RSS":          {PeakRSS: startRSSBar + 1},
		"restart to live":   {Restart: 3.1},
		"streaming lists":   {Read: [2]int64{0, 1}},
		"1 twice, 0 wrong":  {Delivery: verify.Result{Duplicates: 1}},
		"objects of the st": {Delivery: verify.Result{Lost: 1}},
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
