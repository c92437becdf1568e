package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

// load is what systems are compared under.
type load struct {
	name    string
	events  bool // Events only
	rate    int  // changes a second; 0: as fast as they go
	changes int
	usual   bool // the baseline is measured too
}

// loads returns the loads for a number of changes in bulk, and for so many seconds at a rate. Events are small: there are
// twice as many.
func loads(changes, seconds int) []load {
	return []load{
		{name: "mixed, bulk", changes: changes, usual: true},
		{name: "Events only, bulk", events: true, changes: 2 * changes},
		{name: "mixed, 5,000/s", rate: 5000, changes: 5000 * seconds},
		{name: "mixed, 200/s", rate: 200, changes: 200 * seconds},
	}
}

// costs is what changes cost under one load.
type costs struct {
	Load     string        `json:"load"`
	Rate     int           `json:"rate"`
	Changes  int           `json:"changes"`
	Floor    measurement   `json:"floor"` // medians of the rounds
	Exporter measurement   `json:"exporter"`
	Baseline *measurement  `json:"baseline,omitempty"`
	Rounds   []measurement `json:"rounds"` // of all systems
	Shares   []share       `json:"profile"`
}

// measureCosts measures all systems under every load, in turn, and profiles the exporter once.
func measureCosts(ctx context.Context, o options) ([]costs, error) {
	profiled, err := buildExporter(ctx, filepath.Join(o.dir, "profiled"), profileHook)
	if err != nil {
		return nil, err
	}
	var all []costs
	for _, l := range loads(o.corpus.Changes, o.seconds) {
		at := o
		at.corpus.Events, at.corpus.Changes, at.rate = l.events, l.changes, l.rate
		c, err := corpus.New(at.corpus)
		if err != nil {
			return nil, err
		}
		systems := []system{floorSystem(o.self), exporterSystem(o.exporter)}
		if l.usual {
			systems = append(systems, baselineSystem(o.self, o.drop))
		}
		measured := costs{Load: l.name, Rate: l.rate, Changes: l.changes}
		rounds := map[string][]measurement{}
		for round := range o.rounds {
			for _, s := range systems {
				fmt.Fprintf(os.Stderr, "%s: %s, round %d of %d\n", l.name, s.name, round+1, o.rounds)
				m, err := measureAfresh(ctx, at, c, s)
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %w", l.name, s.name, err)
				}
				rounds[s.name] = append(rounds[s.name], m)
				measured.Rounds = append(measured.Rounds, m)
			}
		}
		measured.Floor, measured.Exporter = medians(rounds["floor"]), medians(rounds["exporter"])
		if l.usual {
			usual := medians(rounds["baseline"])
			measured.Baseline = &usual
		}
		fmt.Fprintf(os.Stderr, "%s: profile\n", l.name)
		if measured.Shares, err = profile(ctx, at, c, profiled, l.changes); err != nil {
			return nil, fmt.Errorf("%s: profile: %w", l.name, err)
		}
		all = append(all, measured)
	}
	return all, nil
}

// measureAfresh is measure in a directory that is removed afterwards.
func measureAfresh(ctx context.Context, o options, c *corpus.Corpus, s system) (m measurement, err error) {
	if o.dir, err = os.MkdirTemp(o.dir, s.name+"-"); err != nil {
		return m, err
	}
	if !o.keep {
		defer os.RemoveAll(o.dir)
	}
	return measure(ctx, o, c, s)
}

// medians returns the median of each number. What arrived is that of the first round in which it was not complete.
func medians(rounds []measurement) measurement {
	m := rounds[0]
	median := func(of func(*measurement) float64) float64 {
		var all []float64
		for i := range rounds {
			all = append(all, of(&rounds[i]))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	m.PerSecond = median(func(m *measurement) float64 { return m.PerSecond })
	m.CPUMicros = median(func(m *measurement) float64 { return m.CPUMicros })
	m.P50 = median(func(m *measurement) float64 { return m.P50 })
	m.P99 = median(func(m *measurement) float64 { return m.P99 })
	m.Total.CPU = median(func(m *measurement) float64 { return m.Total.CPU })
	m.Total.PeakRSS = int64(median(func(m *measurement) float64 { return float64(m.Total.PeakRSS) }))
	m.Sync.Seconds = median(func(m *measurement) float64 { return m.Sync.Seconds })
	m.Sync.CPU = median(func(m *measurement) float64 { return m.Sync.CPU })
	m.Sync.PeakRSS = int64(median(func(m *measurement) float64 { return float64(m.Sync.PeakRSS) }))
	for _, round := range rounds {
		if !round.Delivered.Complete() {
			m.Delivered = round.Delivered
			break
		}
	}
	return m
}

// Bars of the loads, ratios to the floor of the same run. They are those of two idle cores.
const (
	mixedCPUBar   = 3.0 // floors
	mixedRateBar  = 0.7
	eventsCPUBar  = 4.5
	usualBar      = 1.0 / 13 // of the baseline's CPU
	middleCPUBar  = 60.0     // µs at 5,000/s
	slowMedianBar = 0.5      // ms above the floor at 200/s
	slowTailBar   = 2.5
	mixedRSSBar   = 110 << 20
	eventsRSSBar  = 100 << 20
	usualRSSBar   = 1.0 / 5
)

// missed returns the bars that were not met.
func (c *costs) missed() (all []string) {
	require := func(ok bool, format string, values ...any) {
		if !ok {
			all = append(all, c.Load+": "+fmt.Sprintf(format, values...))
		}
	}
	ours, floor := c.Exporter, c.Floor
	if d := ours.Delivered; !d.Complete() {
		require(false, "the exporter's records: %d lost, %d out of order, %d wrong, %d control records", d.Lost, d.OutOfOrder, d.Wrong, d.Control)
	}
	floors := ours.CPUMicros / floor.CPUMicros
	switch c.Load {
	case "mixed, bulk":
		require(floors <= mixedCPUBar, "CPU per change: %.2f floors, at most %.1f", floors, mixedCPUBar)
		require(ours.PerSecond >= mixedRateBar*floor.PerSecond, "changes/s: %.2f of the floor's, at least %.1f", ours.PerSecond/floor.PerSecond, mixedRateBar)
		require(ours.Total.PeakRSS <= mixedRSSBar, "peak RSS: %s MiB, at most %s", mebibytes(ours.Total.PeakRSS), mebibytes(mixedRSSBar))
	case "Events only, bulk":
		require(floors <= eventsCPUBar, "CPU per change: %.2f floors, at most %.1f", floors, eventsCPUBar)
		require(ours.Total.PeakRSS <= eventsRSSBar, "peak RSS: %s MiB, at most %s", mebibytes(ours.Total.PeakRSS), mebibytes(eventsRSSBar))
	case "mixed, 5,000/s":
		require(ours.CPUMicros <= middleCPUBar, "CPU per change: %.1f µs, at most %.0f", ours.CPUMicros, middleCPUBar)
	case "mixed, 200/s":
		require(ours.P50-floor.P50 <= slowMedianBar, "median: %.2f ms above the floor, at most %.1f", ours.P50-floor.P50, slowMedianBar)
		require(ours.P99-floor.P99 <= slowTailBar, "99 %%: %.2f ms above the floor, at most %.1f", ours.P99-floor.P99, slowTailBar)
	}
	if theirs := c.Baseline; theirs != nil {
		require(ours.CPUMicros <= usualBar*theirs.CPUMicros, "CPU per change: 1/%.1f of the baseline's, at most 1/%.0f", theirs.CPUMicros/ours.CPUMicros, 1/usualBar)
		require(float64(ours.Total.PeakRSS) <= usualRSSBar*float64(theirs.Total.PeakRSS), "peak RSS: %.3f of the baseline's, at most %.3f",
			float64(ours.Total.PeakRSS)/float64(theirs.Total.PeakRSS), usualRSSBar)
	}
	return all
}
